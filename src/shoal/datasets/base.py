"""Domains and data sets: named domains in order, with shared classes, and their splits."""

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checks import check_range
from ..choices import choose
from ..notebook import html_table
from ..randomness import domainbed_hash
from .groups import Groups
from .reading import AS_STORED, Reading

Images = Tensor | tuple[Path, ...]
# Image files, images in memory, or rows of a table.
Kind = Literal["files", "images", "vectors"]
# Files are decoded to this height and width before a network evaluates them.
EVALUATION_SIDE = 224
HOLDOUT = 0.2


@dataclass(frozen=True, eq=False)
class Domain:
    """One domain: its labels ``[n]`` and inputs.

    ``images`` are uint8 ``[n, C, H, W]`` in memory, or float32 as the network takes them, which is
    0 … 1 for those here; or n files; or float32 vectors ``[n, d]`` with NaN for missing values.
    """

    name: str
    labels: Tensor = field(repr=False)
    images: Images = field(repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a domain needs a name, got ''")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise ValueError(
                f"labels of the domain {self.name!r} must be int64 [n], "
                f"got {self.labels.dtype} of shape {list(self.labels.shape)}"
            )
        if isinstance(self.images, Tensor) and (self.images.dtype, self.images.ndim) not in (
            (torch.uint8, 4),
            (torch.float32, 4),
            (torch.float32, 2),
        ):
            raise ValueError(
                f"images of the domain {self.name!r} must be uint8 or float32 [n, C, H, W] "
                f"or files, and vectors float32 [n, d], got {self.images.dtype} of shape "
                f"{list(self.images.shape)}"
            )
        if len(self.images) != len(self.labels):
            raise ValueError(
                f"the domain {self.name!r} must have one label per image, "
                f"got {len(self.labels)} labels for {len(self.images)} images"
            )
        if len(self.labels) == 0:
            raise ValueError(f"the domain {self.name!r} has no images")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> Kind:
        """Whether the inputs are files, images in memory or vectors."""
        if not isinstance(self.images, Tensor):
            return "files"
        return "vectors" if self.images.ndim == 2 else "images"

    @property
    def in_memory(self) -> bool:
        return self.kind != "files"

    @property
    def tensor(self) -> Tensor:
        """The inputs in memory; raise if they are files."""
        if not isinstance(self.images, Tensor):
            raise TypeError(f"the images of the domain {self.name!r} are files, not in memory")
        return self.images

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the images; raise if the inputs are in memory."""
        if isinstance(self.images, Tensor):
            raise TypeError(f"the domain {self.name!r} has its inputs in memory, and no files")
        return self.images

    @cached_property
    def stamps(self) -> Tensor:
        """Size and time of the last change (ns) of every file, int64 ``[n, 2]``, looked up once.

        Both are −1 for a link that leads nowhere, which is reported when it is read.
        """
        return torch.tensor([_stamp(path) for path in self.files])


@dataclass(frozen=True, eq=False)
class DomainDataset:
    """Domains in order, with shared class names; label k is ``classes[k]`` in all of them.

    Args:
        order: names all domains of the set, also those that ``without`` removed: a domain's index
            in it seeds its split, which must not depend on the test domains.
        groups: the examples that a split keeps together, also of removed domains; None if every
            example stands alone.
        reading: how files become pixels.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]
    order: tuple[str, ...] = ()
    groups: Groups | None = None
    reading: Reading = AS_STORED

    def __post_init__(self) -> None:
        if not self.domains:
            raise ValueError(f"{self.name} has no domains")
        for kind, names in (("domain", self.names), ("class", self.classes)):
            twice = sorted(name for name, count in Counter(names).items() if count > 1)
            if twice:
                raise ValueError(f"{self.name} has two of the {kind} {twice[0]!r}")
        for domain in self.domains:
            check_range(
                f"labels of the domain {domain.name!r}",
                domain.labels,
                len(self.classes),
                f"{self.name} has {len(self.classes)} classes",
            )
        kinds = sorted({domain.kind for domain in self.domains})
        if len(kinds) > 1:
            raise ValueError(f"the domains of {self.name} must be of one kind, got {kinds}")
        shapes = {domain.tensor.shape[1:] for domain in self.domains if domain.in_memory}
        if len(shapes) > 1:
            raise ValueError(
                f"images of {self.name} must have one shape [C, H, W], "
                f"got {sorted(list(shape) for shape in shapes)}"
            )
        object.__setattr__(self, "order", self.order or self.names)
        if missing := set(self.names) - set(self.order):
            raise ValueError(f"order must name every domain of {self.name}, not {sorted(missing)}")
        if self.groups is not None:
            self.groups.check({domain.name: len(domain) for domain in self.domains})

    @property
    def names(self) -> tuple[str, ...]:
        """The domains' names, in order."""
        return tuple(domain.name for domain in self.domains)

    @property
    def kind(self) -> Kind:
        """Whether the inputs are files, images in memory or vectors."""
        return self.domains[0].kind

    @property
    def in_memory(self) -> bool:
        """Whether the inputs are tensors; files need a cache of decoded images."""
        return self.domains[0].in_memory

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input of a network: ``(C, H, W)`` of images, ``(d,)`` of vectors."""
        if self.kind == "files":
            return 3, EVALUATION_SIDE, EVALUATION_SIDE
        return tuple(self.domains[0].tensor.shape[1:])

    def __getitem__(self, name: str) -> Domain:
        if name not in self.names and name.isdecimal() and int(name) < len(self.order):
            raise ValueError(
                f"unknown domain of {self.name} {name!r}: domains have names here, and number "
                f"{name} is {self.order[int(name)]!r}; use its name"
            )
        choose(f"domain of {self.name}", name, self.names)
        return self.domains[self.names.index(name)]

    def place(self, name: str) -> int:
        """Return the domain's index in the whole data set, which seeds its split."""
        return self.order.index(self[name].name)

    def without(self, test_domains: Sequence[str]) -> "DomainDataset":
        """Return the data set without these domains."""
        if isinstance(test_domains, str):
            raise TypeError(f"test domains must be a list of names, got {test_domains!r}")
        removed = {self[name].name for name in test_domains}
        others = tuple(domain for domain in self.domains if domain.name not in removed)
        if not others:
            raise ValueError(f"no domain of {self.name} is left: all of them are test domains")
        return replace(self, domains=others)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of images of every class in every domain."""
        found = {}
        for domain in self.domains:
            counts = torch.bincount(domain.labels, minlength=len(self.classes)).tolist()
            found[domain.name] = dict(zip(self.classes, counts, strict=True))
        return found

    def _repr_html_(self) -> str:
        rows = [(name, *each.values(), sum(each.values())) for name, each in self.counts().items()]
        return html_table(rows, ("domain", *self.classes, "all"), self.name)

    def missing_classes(self) -> dict[str, tuple[str, ...]]:
        """Return the classes that each domain lacks, for the domains that lack any."""
        found = {
            domain: tuple(name for name, count in counts.items() if count == 0)
            for domain, counts in self.counts().items()
        }
        return {domain: classes for domain, classes in found.items() if classes}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of names, labels and images; of files, their names and sizes without folders.

        Groups count as well, and how files are read, if not as stored. It is part of a run's
        identity. A cache of decoded images also checks when files changed.
        """
        digest = hashlib.sha256()

        def add(part: bytes | memoryview) -> None:
            # The length first, so that two different lists of parts never give the same bytes.
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)

        def text(part: object) -> None:
            add(json.dumps(part).encode())

        def tensor(part: Tensor) -> None:
            text(list(part.shape))
            add(part.cpu().contiguous().view(torch.uint8).numpy().reshape(-1).data)

        text([self.name, self.classes, self.order])
        for domain in self.domains:
            text(domain.name)
            tensor(domain.labels)
            if domain.in_memory:
                tensor(domain.tensor)
            else:
                sizes = (None if size < 0 else size for size in domain.stamps[:, 0].tolist())
                text([[path.name, size] for path, size in zip(domain.files, sizes, strict=True)])
        # Later options, which leave the fingerprint of a set without them as it was.
        if self.groups is not None:
            text("groups")
            for name in self.order:
                tensor(self.groups.ids[name])
        if self.reading != AS_STORED:
            text(["reading", self.reading.as_json()])
        return digest.hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        if path.is_symlink():
            return -1, -1
        raise
    return found.st_size, found.st_mtime_ns


def check_trial(trial: int) -> int:
    """Return the trial as a plain int, because its text is part of seeds; raise below 0."""
    if operator.index(trial) < 0:
        raise ValueError(f"trial must be 0 or more, got {trial}")
    return operator.index(trial)


class Split(NamedTuple):
    """Indices of a domain's images: kept (DomainBed's "in") and held out (its "out")."""

    kept: Tensor
    held_out: Tensor


def splits(dataset: DomainDataset, trial: int, holdout: float = HOLDOUT) -> dict[str, Split]:
    """Return the trial's split of every domain, by name.

    It depends on the trial, the domain and its index in the whole data set, so it is the same with
    and without the test domains. A group is held out in all domains or in none.
    """
    found = {
        domain.name: split(len(domain), trial, dataset.place(domain.name), holdout)
        for domain in dataset.domains
    }
    if dataset.groups is None:
        return found
    out = dataset.groups.held_out(check_trial(trial), holdout)
    grouped = {}
    for name, (kept, held_out) in found.items():
        order = torch.cat([held_out, kept])
        chosen = out[dataset.groups.ids[name][order]]
        grouped[name] = Split(order[~chosen], order[chosen])
    return grouped


def split(n: int, trial: int, place: int, holdout: float = HOLDOUT) -> Split:
    """Return n indices shuffled as in DomainBed; the first int(holdout · n) are held out.

    A domain of fewer than 1/holdout images has none held out.
    """
    if not 0 <= holdout < 1:
        raise ValueError(f"holdout must be 0 or more and below 1, got {holdout}")
    order = np.arange(n)
    np.random.RandomState(domainbed_hash(check_trial(trial), int(place))).shuffle(order)
    held_out, kept = np.split(order, [int(n * holdout)])
    return Split(torch.from_numpy(kept), torch.from_numpy(held_out))
