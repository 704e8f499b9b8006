"""What the workers of a sweep work on: methods and data by the names that a command was given."""

from argparse import Namespace
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arguments import device


@dataclass(frozen=True)
class CommandWorld:
    """Names become methods and data as on the command line; made anew in every worker."""

    algorithms: dict[str, str]  # what each method was called there, by its name in runs
    datasets: dict[str, str]  # and each data set
    data_folder: Path
    cache_folder: Path
    device: str
    step: str
    log: str | None = None
    keep_best: tuple[str, ...] = ()

    def method(self, name: str) -> Any:
        from ..own import with_settings
        from ..runs.model import registered

        # A name that only stands in a plan must not import anything.
        if name not in self.algorithms:
            return registered(name), {}
        return with_settings(self.algorithms[name])

    def dataset(self, name: str, trial: int) -> Any:
        """Return the data set alone."""
        from .loading import dataset_of

        asked = Namespace(dataset=self.datasets[name], data=self.data_folder, trial=trial)
        return dataset_of(asked, quiet=True)  # who plans has told what there is to tell

    def data(self, name: str, trial: int) -> Any:
        from torch import Tensor

        from ..datasets.cache import cache_folder, open_cache
        from ..runs.folder import locked
        from .loading import cache_of

        dataset = self.dataset(name, trial)
        if isinstance(dataset.domains[0].images, Tensor):
            return dataset, None
        folder = cache_folder(dataset, self.cache_folder)
        with suppress(ValueError):  # a whole one may lie where nothing can be written
            return dataset, open_cache(dataset, folder)
        # Building refuses company: workers that need the same images wait for who builds them.
        with locked(folder.with_name(f"{folder.name}.lock")):
            return dataset, cache_of(dataset, Namespace(cache=self.cache_folder))

    def machine(self) -> Any:
        from ..runs.machine import Machine

        on = device(self.device)
        # What is compiled once serves all runs of a worker.
        kind: Any = self.step
        if kind == "auto":
            kind = "compiled" if on.type == "cuda" else "eager"
        return Machine(on, kind, log=self.log, keep_best=self.keep_best)
