"""DomainBed's split of every domain into what is trained on and what is held out."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..randomness import domainbed_hash
from .base import DomainDataset, checked_trial

HOLDOUT = 0.2


class Split(NamedTuple):
    """Indices of a domain's images: kept (DomainBed's "in") and held out (its "out")."""

    kept: Tensor
    held_out: Tensor


def splits(dataset: DomainDataset, trial: int, holdout: float = HOLDOUT) -> dict[str, Split]:
    """Return the trial's split of every domain, by name.

    It depends on the domain's size and its place in the whole data set, so it is the same with and
    without the test domains.
    """
    return {
        domain.name: split(len(domain), trial, dataset.place(domain.name), holdout)
        for domain in dataset.domains
    }


def split(n: int, trial: int, place: int, holdout: float = HOLDOUT) -> Split:
    """Return n indices shuffled as DomainBed does; the first int(holdout · n) are held out.

    Of fewer than 1/holdout images none is held out: whoever selects by them has to ask for more.
    """
    if not 0 <= holdout < 1:
        raise ValueError(f"holdout must be 0 or more and below 1, got {holdout}")
    order = np.arange(n)
    np.random.RandomState(domainbed_hash(checked_trial(trial), int(place))).shuffle(order)
    held_out, kept = np.split(order, [int(n * holdout)])
    return Split(torch.from_numpy(kept), torch.from_numpy(held_out))
