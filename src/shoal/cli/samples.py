"""Sample images for the page of a sweep, from the data sets that this machine has."""

import argparse
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .notes import note

# Images on a page, about 5 kB each.
MOST = 320


def samples_of(runs: Sequence[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return images by data set and domain for the page; print why a data set has none."""
    first = {run.dataset: run for run in sorted(runs, key=lambda run: run.trial, reverse=True)}
    found = {}
    for name in dict.fromkeys(run.dataset for run in runs):
        try:
            samples = _samples(first[name], options, MOST // len(first))
        except ModuleNotFoundError as error:
            hint = f"{error.name} is not installed: pip install 'shoal[images]'"
            note(f"no sample images of {name}: {hint}")
            continue
        except (ValueError, OSError) as error:
            note(f"no sample images of {name}: {error}")
            continue
        found[name] = {
            domain: [(one.label, _address(one)) for one in mine] for domain, mine in samples.items()
        }
    return found


def _samples(run: Any, options: argparse.Namespace, most: int) -> Any:
    """Return images of the run's data set, or of its cache if the files are not here."""
    from ..datasets.cache import find_caches
    from ..datasets.samples import cached_samples, samples

    if run.dataset in ("", "..") or Path(run.dataset).name != run.dataset:
        raise ValueError("its name is a path, which could lead to any folder")
    try:
        dataset = _dataset(run, options)
    except (ValueError, OSError) as error:
        if run.fingerprint:
            for folder in find_caches(run.dataset, run.fingerprint, options.cache):
                if cached := cached_samples(folder, most):
                    return cached
        raise ValueError(f"{error}; give its folder with --data") from error
    if run.fingerprint and dataset.fingerprint != run.fingerprint:
        raise ValueError("the data set has changed since the runs were trained")
    return samples(dataset, most)


def _dataset(run: Any, options: argparse.Namespace) -> Any:
    from ..datasets import DATASETS, find, image_folders

    if run.dataset in DATASETS:
        return find(run.dataset)(options.data, run.trial)
    if (options.data / run.dataset).is_dir():
        return image_folders(run.dataset, options.data / run.dataset)
    raise ValueError(f"there is no folder {options.data / run.dataset}")


def _address(sample: Any) -> str:
    """Return the image as a data URL."""
    return f"data:image/{sample.kind};base64,{base64.b64encode(sample.content).decode()}"
