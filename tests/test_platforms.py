"""Platforms: the library without what only POSIX systems have, and on devices without float64."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import shoal
from shoal import scalars
from shoal.cli.options import device as cli_device
from shoal.fitting import classifier
from shoal.fitting.predictor import device_of
from shoal.fitting.weights import sampling_of
from shoal.runs.machine import Machine, about_machine, device_id
from shoal.training import batches
from shoal.training.batches import _last_places as last_places
from shoal.training.placement import Sampling

SOURCE = Path(shoal.__file__).parent

# Torch and what it imports belong to the platform, so they are loaded before it changes.
AS_ON_WINDOWS = """
import importlib, json, os, pkgutil, signal, sys, warnings
from pathlib import Path
import filelock, numpy, torch, torch.optim, torch._dynamo, multiprocessing.spawn, subprocess

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline"}
SIGNALS = {"SIGPIPE", "SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGQUIT"}
CALLS = {
    "fork", "forkpty", "getloadavg", "sched_getaffinity", "getuid", "geteuid", "getgid", "getpgid",
    "killpg", "setsid", "sync", "fdatasync", "statvfs", "uname", "nice", "mkfifo", "chown",
    "posix_fallocate", "posix_fadvise", "pread", "pwrite", "sendfile",
}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
for name in MODULES:
    sys.modules.pop(name, None)
for name in SIGNALS:
    delattr(signal, name)
for name in CALLS:
    delattr(os, name)

import shoal

found = {"imported": 0}
for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
    if module.name != "shoal.__main__":
        importlib.import_module(module.name)
        found["imported"] += 1

folder = Path(sys.argv[1])
rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)).numpy()
labels = (rows[:, 0] > 0).astype(int)
domains = numpy.repeat(["a", "b", "c"], 20)
model = shoal.DomainClassifier("fishr", steps=20).fit(rows, labels, domains)
model.save(folder / "model")
again = shoal.load(folder / "model")
same = numpy.allclose(again.predict_proba(rows), model.predict_proba(rows), atol=1e-6)
found["same"] = bool(same)
found["right"] = float((model.predict(rows) == labels).mean())

from shoal.storage import has_flock, hold_lock, is_locked

lock = folder / "lock"
with hold_lock(lock):
    held = is_locked(lock)
found["flock"], found["held"], found["freed"] = has_flock(), held, not is_locked(lock)

from shoal.cli import main

found["fit"] = main(
    ["fit", sys.argv[2], "--only", "erm", "--runs", "3", "--steps", "5", "--trials", "1", "--out",
     str(folder / "fit"), "-q"]
)
print(json.dumps(found))
"""


def test_nothing_needs_what_only_posix_systems_have(tmp_path: Path) -> None:
    """Windows has no fcntl, resource or fork, and few signals; every module imports all the same.

    So do training, saving and predicting, locks, and ``shoal fit`` on a table.
    """
    table = tmp_path / "table.csv"
    rows = [f"{n % 3},{n % 2},{n * 7 % 5 + n % 2}" for n in range(60)]
    table.write_text("\n".join(["domain,class,x", *rows]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS, str(tmp_path), str(table)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("imported") > 150
    assert found.pop("right") > 0.8
    assert found == {"same": True, "flock": False, "held": True, "freed": True, "fit": 0}


# A GPU of Apple's


class NoFloat64(TorchDispatchMode):
    """Refuses tensors in float64, as MPS does."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(one, torch.Tensor) and one.dtype == torch.float64:
                raise TypeError(f"{function} made float64, which MPS does not have")
        return made


def sampling_on_the_host(*given: Any) -> Sampling:
    """Return weights of examples in float32; on the host, which has float64, they are wider."""
    with _disable_current_modes():
        found = sampling_of(*given)
        return replace(
            found,
            weights={name: weights.float() for name, weights in found.weights.items()},
            class_weights=found.class_weights.float(),
        )


def places_on_the_host(weights: torch.Tensor) -> torch.Tensor:
    """Return whole numbers, which the host finds in float64 and passes to the device."""
    with _disable_current_modes():
        return last_places(weights)


@pytest.mark.parametrize("method", ["erm", "fishr"])
def test_training_needs_no_float64_where_a_device_has_none(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("shoal.") and hasattr(module, "widest"):
            monkeypatch.setattr(module, "widest", lambda _: torch.float32)
    monkeypatch.setattr(classifier, "sampling_of", sampling_on_the_host)
    monkeypatch.setattr(batches, "_last_places", places_on_the_host)
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    labels, domains = (rows[:, 0] > 0).long(), torch.arange(40) % 2
    with NoFloat64():
        model = shoal.DomainClassifier(method, steps=15).fit(rows, labels, domains)
        assert model.predict_proba(rows).shape == (40, 2)
    with pytest.raises(TypeError, match="float64"), NoFloat64():
        rows.double()


def test_apples_gpus_are_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never by default: nobody has tried them."""
    with pytest.raises(ValueError, match=r"device 'mps' cannot be used here; use cpu"):
        device_of("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for find in (device_of, cli_device):
        assert find("mps") == torch.device("mps")
    assert cli_device("auto") == device_of(None) == torch.device("cpu")
    assert scalars.widest(torch.device("mps")) == torch.float32
    assert about_machine(Machine(device=torch.device("mps")))["device"] == "mps"
    assert device_id(torch.device("mps")) == "mps"
