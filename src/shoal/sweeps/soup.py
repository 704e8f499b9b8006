"""Soups: averages over runs that share their start, measured beside the runs and their ensemble.

The average of the weights of several runs is one model that predicts at the cost of one (Wortsman
et al., 2022; DiWA, Ramé et al., 2022). It works if they lie in one basin of the loss: they must
have started from the same weights, head included, and not have moved too far apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from ..algorithms.base import Algorithm
from ..catalogue import STARTS
from ..datasets import DomainDataset, splits
from ..datasets.cache import ImageCache
from ..documents import damage_named, read_json
from ..results.records import CARD, HELD_OUT, KEPT, Record, mean_inside
from ..results.soups import (
    BEST,
    ENSEMBLE,
    GREEDY,
    INTERPOLATED,
    MEAN,
    MEMBER,
    UNIFORM,
    Soup,
    SoupRow,
    best_alpha,
)
from ..runs import model
from ..runs.start import START_CARD, START_WEIGHTS, load_start
from ..storage import hold_lock, write_json
from ..tensor_files import read_safetensors
from ..training.batches import Normalise, scaled
from ..training.evaluation import Evaluation, Outcome, SplitKey, record_of
from ..training.placement import place_parts
from ..training.step import precision_context
from .members import Group
from .soup_weights import ALPHAS, Weights, WeightSum, best_first, greedy, interpolate

# In the folder of soups: all numbers. Each group of runs has a folder with its models beside it.
SOUPS, LOCK, SCHEMA = "soups.json", "soups.lock", 1
# How far heads of linear probes may lie apart, as a share of their largest weight: those of one
# start differ by rounding, which another device does otherwise.
NEAR = 0.01

Logits = dict[SplitKey, Tensor]
# Called with the number of images that were classified, and how many there are for all models.
Progress = Callable[[int, int], object]


def read_soup(out: Path, name: str, key: str) -> Soup | None:
    """Return the soup of this name and key in ``out``; None if it or one of its models is not."""
    if not (out / SOUPS).exists():
        return None
    with damage_named(out / SOUPS):
        found = read_json(out / SOUPS)["groups"].get(name)
        if found is None or found["key"] != key:
            return None
        soup = Soup.from_json(found)
        cards = [out / name / row.model / CARD for row in soup.rows if row.model is not None]
    whole = all(card.is_file() and _key_of(card) == key for card in cards)
    return soup if whole else None


def _key_of(card: Path) -> str:
    with damage_named(card):
        found: str = read_json(card)["soup"]["key"]
        return found


def write_soup(out: Path, soup: Soup) -> None:
    """Add the numbers of a soup to those in ``out``."""
    with hold_lock(out / LOCK):
        with damage_named(out / SOUPS):
            groups = dict(read_json(out / SOUPS)["groups"]) if (out / SOUPS).exists() else {}
        groups[soup.name] = soup.to_json()
        write_json(out / SOUPS, {"schema": SCHEMA, "groups": dict(sorted(groups.items()))})


def make_soup(
    group: Group,
    dataset: DomainDataset,
    cache: ImageCache | None,
    out: Path,
    device: torch.device,
    method: type[Algorithm] | None = None,
    progress: Progress = lambda done, total: None,
) -> Soup:
    """Return the group's members, averages and ensemble, measured; save averages in ``out``.

    Args:
        method: the class of a user's own method, which files cannot name.
    """
    models = _GroupModels(group, dataset, cache, device, method, progress)
    every, folder = range(len(group.members)), out / group.name
    sums, ensemble, members = WeightSum(), Logits(), list[SoupRow]()
    for number in every:
        algorithm = models.load(number)
        sums.add(models.weights_of(algorithm))
        logits = models.logits(algorithm)
        for place, values in logits.items():
            # The mean: the predictions of the sum, and confidences that do not grow with members.
            share = values.double() / len(every)
            ensemble[place] = ensemble[place] + share if place in ensemble else share
        members.append(models.row(MEMBER, [number], models.record(logits)))
    scores, uniform = [row.validation for row in members], sums.mean()
    record = models.measure(uniform)
    stayed = greedy(scores, models.score_of_average)
    rows = [
        *members,
        _mean_of(members),
        replace(members[best_first(scores)[0]], kind=BEST),
        models.save(folder, UNIFORM, every, uniform, record),
        models.save_mean(folder, GREEDY, stayed),
        models.row(ENSEMBLE, every, models.record(ensemble)),
    ]
    if models.start is not None:
        rows += _interpolations(models, models.start, uniform, record, folder)
    run = group.first
    return Soup(
        name=group.name,
        key=group.key,
        dataset=run.dataset,
        algorithm=run.algorithm,
        test_domain=group.test_domain,
        trial=run.trial,
        of=group.of,
        rows=tuple(rows),
        why=models.why,
    )


def _interpolations(
    models: "_GroupModels", start: Weights, uniform: Weights, record: Record, folder: Path
) -> list[SoupRow]:
    """Return rows of the way from the start to the uniform soup; save what validation chooses.

    Args:
        record: the numbers of the uniform soup.
    """
    records = {
        alpha: record if alpha == 1 else models.measure(interpolate(start, uniform, alpha))
        for alpha in ALPHAS
    }
    every = range(len(models.group.members))
    rows = [
        models.row(INTERPOLATED, every if alpha else (), found, alpha)
        for alpha, found in records.items()
    ]
    best = best_alpha(rows)
    alpha = best.alpha or 0.0
    saved = models.save(
        folder,
        INTERPOLATED,
        every if alpha else (),
        interpolate(start, uniform, alpha),
        record=records[alpha],
        alpha=alpha,
    )
    return [saved if row is best else row for row in rows]


def _layers(network: nn.Module) -> list[str]:
    """Return the kinds of a network's layers, without dropout, which predictions do not need."""
    kinds = (type(part).__name__ for part in network.modules())
    return [kind for kind in kinds if "Dropout" not in kind and kind != "Identity"]


def _mean_of(rows: Sequence[SoupRow]) -> SoupRow:
    """Return the mean numbers of members, which are no model."""
    return SoupRow(
        kind=MEAN,
        draws=tuple(draw for row in rows for draw in row.draws),
        validation=fmean(row.validation for row in rows),
        test=fmean(row.test for row in rows),
        calibration_error=fmean(row.calibration_error for row in rows),
    )


class _GroupModels:
    """The members of a group and their averages: loaded, measured on its images, and saved.

    Averages are given to the model of the first member: only weights are averaged, and its buffers
    stay. ``start`` are the weights that all members started from; None, and ``why``, if there are
    none to interpolate with.
    """

    def __init__(
        self,
        group: Group,
        dataset: DomainDataset,
        cache: ImageCache | None,
        device: torch.device,
        method: type[Algorithm] | None,
        progress: Progress,
    ) -> None:
        run = group.first
        if dataset.fingerprint != run.fingerprint:
            raise ValueError(f"{dataset.name} has changed since its runs were trained")
        self.group, self.device, self._method = group, device, method
        self.classes, self.trained = dataset.classes, dataset.without(run.test_domains).names
        self._places = _places(group, dataset)
        parts = splits(dataset, run.trial, run.protocol.holdout)
        self._parts = place_parts(dataset, parts, cache, self._places, device)
        self.first = model.load(group.members[0].weights, device, method)
        self._shapes = {name: w.shape for name, w in self.first.algorithm.named_parameters()}
        self._layers = _layers(self.first.algorithm.model)
        _refuse_moving_statistics(self.first.algorithm)
        self.start, self.why = self._find_start()
        self._stayed = WeightSum()
        # Members, two soups and all but the last interpolation; and candidates of the greedy one.
        whole = len(group.members) + 2 + (0 if self.start is None else len(ALPHAS) - 1)
        self._total = whole * self._count(self._places)
        self._total += (len(group.members) - 1) * self._count(self._places[:-1])
        self._done, self._progress = 0, progress

    def load(self, number: int) -> Algorithm:
        """Return the method of a member with its own weights."""
        if number == 0:
            return self.first.algorithm
        return model.load(self.group.members[number].weights, self.device, self._method).algorithm

    def weights_of(self, algorithm: Algorithm) -> dict[str, Tensor]:
        """Return copies of a member's weights, on the host.

        Raise if the first has weights of other shapes, or other layers.
        """
        found = {name: w.detach().cpu().clone() for name, w in algorithm.named_parameters()}
        if {name: w.shape for name, w in found.items()} != self._shapes:
            names = sorted(self._shapes.keys() ^ found.keys()) or [
                name for name, shape in self._shapes.items() if found[name].shape != shape
            ]
            raise ValueError(
                f"the runs of {self.group.first.algorithm} cannot be averaged, because their "
                f"hyperparameters change the shape of {names[0]}; train with --search mild, or fix "
                "them with --set"
            )
        for one, other in zip_longest(self._layers, _layers(algorithm.model)):
            if one != other:
                raise ValueError(
                    f"the runs of {self.group.first.algorithm} cannot be averaged, because their "
                    f"hyperparameters change the network's layers ({one} and {other}); fix them "
                    "with --set"
                )
        return found

    def _read(self, number: int) -> dict[str, Tensor]:
        """Return the weights of a member that fits, without building its network again."""
        folder = self.group.members[number].weights
        tensors = model.read_tensors(folder, model.read_card(folder))
        return {name: tensors[name] for name in self._shapes}

    def score_of_average(self, numbers: list[int]) -> float:
        """Return the validation accuracy of the average of members, as ``greedy`` asks for it.

        Every call has the members of the last one that stayed, which are summed up only once.
        """
        for number in numbers[self._stayed.count : -1]:
            self._stayed.add(self._read(number))
        self._give(self._stayed.mean(self._read(numbers[-1])))
        logits = self.logits(self.first.algorithm, self._places[:-1])
        return mean_inside(self.record(logits).accuracy, self.group.first.test_domains)

    def _give(self, weights: Weights) -> None:
        """Give the model of the first member other weights."""
        with torch.no_grad():
            for name, parameter in self.first.algorithm.named_parameters():
                parameter.copy_(weights[name])

    def measure(self, weights: Weights) -> Record:
        """Return the accuracies of these weights."""
        self._give(weights)
        return self.record(self.logits(self.first.algorithm))

    def logits(self, algorithm: Algorithm, places: Sequence[SplitKey] | None = None) -> Logits:
        """Return the logits of a method on parts of the data, by default on all, on the host."""
        parts = {place: self._parts[place] for place in places or self._places}
        preprocessing = getattr(algorithm.model, "preprocessing", None)
        channels_last = model.uses_channels_last(self.first.card["shape"])
        normalise = Normalise(preprocessing, channels_last, self.device)
        precision = partial(precision_context, self.group.first.protocol.precision, self.device)
        evaluate = Evaluation(algorithm, parts, lambda x: normalise(scaled(x)), precision)
        found = {
            place: torch.cat([batch.float() for batch in evaluate.logits(part)]).cpu()
            for place, part in parts.items()
        }
        self._done += self._count(list(parts))
        self._progress(self._done, self._total)
        return found

    def _count(self, places: Sequence[SplitKey]) -> int:
        return sum(len(self._parts[place]) for place in places)

    def record(self, logits: Logits) -> Record:
        """Return the accuracies and calibration errors that logits have."""
        outcomes = {
            place: Outcome.of_logits(self._parts[place].labels, values)
            for place, values in logits.items()
        }
        return record_of(max(one.step for one in self.group.members), {}, outcomes, {})

    def row(
        self, kind: str, numbers: Sequence[int], record: Record, alpha: float | None = None
    ) -> SoupRow:
        """Return the row of a model of these members."""
        test = self.group.test_domain
        return SoupRow(
            kind=kind,
            draws=tuple(self.group.members[number].draw for number in numbers),
            validation=mean_inside(record.accuracy, self.group.first.test_domains),
            test=record.of(test, KEPT),
            calibration_error=record.calibration_error[test][KEPT],
            alpha=alpha,
        )

    def save_mean(self, folder: Path, kind: str, numbers: Sequence[int]) -> SoupRow:
        """Measure the average of some members, and save it; return its row."""
        sums = WeightSum()
        for number in numbers:
            sums.add(self._read(number))
        record = self.measure(sums.mean())
        return self.save(folder, kind, numbers, sums.mean(), record)

    def save(
        self,
        folder: Path,
        kind: str,
        numbers: Sequence[int],
        weights: Weights,
        record: Record,
        alpha: float | None = None,
    ) -> SoupRow:
        """Save the weights of these members' average as a model in a folder; return its row.

        Args:
            record: what was measured of them.
        """
        self._give(weights)
        row = replace(self.row(kind, numbers, record, alpha), model=kind)
        members = [self.group.members[number] for number in numbers]
        about = {
            **asdict(row),
            "of": self.group.of,
            "key": self.group.key,
            "members": [
                {
                    "draw": one.draw,
                    "run": one.run.identity[:20],
                    "step": one.step,
                    "sha256": one.sha256,
                    "hparams": dict(one.run.hparams),
                }
                for one in members
            ],
        }
        model.save(
            folder / kind,
            self.first.algorithm,
            run=self.group.first,
            shape=self.first.card["shape"],
            classes=self.classes,
            domains=self.trained,
            record=record,
            about={"soup": about},
        )
        return row

    def _find_start(self) -> tuple[dict[str, Tensor] | None, str | None]:
        """Return the weights that all members started from; or None, and why."""
        run = self.group.first
        if run.protocol.start == STARTS[0]:
            return None, (
                "the runs started with a random head; train them with --start linear-probe to "
                "interpolate with their start"
            )
        folders = [member.folder for member in self.group.members]
        if missing := [folder for folder in folders if not (folder / START_CARD).is_file()]:
            return None, f"{missing[0]} has no {START_CARD}, which was not copied with it"
        if run.protocol.weights not in (None, "imagenet"):
            return None, "the runs started from a file of weights, which they do not keep"
        _refuse_other_heads(folders)
        try:
            started = model.build(
                run,
                type(self.first.algorithm),
                shape=self.first.card["shape"],
                classes=len(self.classes),
                num_domains=len(self.trained),
                weights=run.protocol.weights,
                device=torch.device("cpu"),
            )
        except (ImportError, OSError) as error:  # trained on another machine
            return None, f"this machine does not have the initial weights of the runs ({error})"
        load_start(started, folders[0])
        return self.weights_of(started), None


def _places(group: Group, dataset: DomainDataset) -> list[SplitKey]:
    """Return the held-out parts of the training domains, and last the test domain's kept part."""
    run = group.first
    parts = splits(dataset, run.trial, run.protocol.holdout)
    trained = dataset.without(run.test_domains).names
    validation = [(name, HELD_OUT) for name in trained if len(parts[name].held_out)]
    if not validation:
        raise ValueError(
            f"nothing of {dataset.name} was held out, so no soup can be judged; train with a "
            "--holdout above 0"
        )
    return [*validation, (group.test_domain, KEPT)]


def _refuse_moving_statistics(algorithm: Algorithm) -> None:
    """Raise if batch norm followed the data: the members' statistics are not those of an average.

    Published soups freeze them. To estimate them anew, every candidate would need passes over the
    training images.
    """
    algorithm.train()
    moving = any(
        isinstance(part, nn.modules.batchnorm._BatchNorm)
        and part.training
        and part.track_running_stats
        for part in algorithm.modules()
    )
    algorithm.eval()
    if moving:
        raise ValueError(
            "the batch-norm statistics of these runs followed the data, so the average of their "
            "weights has no statistics; train with frozen ones: without --train-batch-norm, and "
            "with a network and a method that freeze them"
        )


def _refuse_other_heads(folders: Sequence[Path]) -> None:
    """Raise unless the linear probes of all runs are the same up to rounding."""
    first = read_safetensors(folders[0] / START_WEIGHTS)
    for folder in folders[1:]:
        mine = read_safetensors(folder / START_WEIGHTS)
        heads = [{name: one.shape for name, one in head.items()} for head in (first, mine)]
        if heads[0] != heads[1] or any(
            (mine[name] - tensor).abs().max() > NEAR * tensor.abs().max()
            for name, tensor in first.items()
        ):
            raise ValueError(
                f"{folders[0]} and {folder} started from different linear probes, so they "
                "cannot be averaged; put them into sweeps of their own"
            )
