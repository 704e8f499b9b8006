"""Packages that not everyone has: imported when asked for, with a word on how to get them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def extra(name: str, wanted_by: str) -> Iterator[None]:
    """Import packages of the extra ``name`` inside; raise a clear error when that fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise ImportError(
            f"{wanted_by} needs {package}, which is not installed: pip install 'shoal[{name}]'"
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        # As in "operator torchvision::nms does not exist": built for another torch.
        raise ImportError(
            f"{wanted_by} needs shoal[{name}], which is installed but cannot be imported beside "
            f"torch {torch.__version__} ({error}); install builds that fit each other, from one "
            "package index"
        ) from error
