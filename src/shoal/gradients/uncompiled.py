"""Statistics that differentiate twice, which compiled code cannot, inside a compiled step."""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

COMPILED = (
    "gradient_variance, gradient_mean and covariance_spread differentiate twice, which a compiled "
    "network does not support: pass the module that was given to torch.compile (they may share "
    "weights), or use head_variance or Fishr, which can be compiled"
)


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function run as it is where the step around it is compiled.

    The graph breaks at it, by a RuntimeError in the tracing that the step must not catch; where it
    may not break, that is an error.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED)
        # The compiler is not loaded for this: that takes more than a second.
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        # Else it would try what the function calls.
        plain: Callable[P, T] = torch.compiler.disable(function)
        return plain(*args, **kwargs)

    return called
