"""Named random streams: what is drawn depends on the name alone, never on what was drawn before."""

import hashlib

import torch


def stream(*name: str | int | float) -> torch.Generator:
    """Return a CPU generator seeded by ``name``, e.g. ``stream("split", trial, domain)``."""
    digest = hashlib.sha256(repr(name).encode()).digest()
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return generator
