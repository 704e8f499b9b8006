"""Penalties with state: what goes into anyone's training loop."""

from .fishr import Fishr
from .match import Match
from .warmup import Warmup

__all__ = ["Fishr", "Match", "Warmup"]
