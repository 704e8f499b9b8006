"""A user's own algorithm: the code of the guide, and the errors for wrong code."""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms import ALGORITHMS, find
from shoal.algorithms.base import Algorithm
from shoal.algorithms.forward import Batch
from shoal.algorithms.hparams import domainbed_hash
from shoal.cli import main
from shoal.cli.methods import algorithm
from tests.docs.test_documents import ROOT, python_blocks

from . import test_contract
from .plain import Plain, compare, make_batches, tiny

GUIDE = ROOT / "docs" / "guides" / "own-algorithm.md"
NAME = "worst_pair.py"
PATH = f"{NAME}:WorstPair"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; modules imported from it are removed afterwards."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def guide(folder: Path) -> Path:
    """The guide's class in a file of the current folder."""
    (_, code), *_ = python_blocks(GUIDE)
    (folder / NAME).write_text(code, "utf-8")
    return folder


def said(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of the command for an algorithm that it refuses."""
    assert main(["hparams", text, "--dataset", "pacs"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("shoal: ") and err.count("\n") == 1, "one line, and no traceback"
    return err


# The guide


@pytest.mark.usefixtures("guide")
def test_its_hyperparameters_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hparams", PATH, "--dataset", "colored-mnist"]) == 0
    out = capsys.readouterr().out
    assert "10^U(-1, 4)" in out and "worst_pair_lambda" in out and "λ, from warmup_steps on" in out

    arguments = ["--dataset", "pacs", "--trial", "1", "--draw", "7", "--json"]
    assert main(["hparams", "fishr", *arguments]) == 0
    fishr = json.loads(capsys.readouterr().out)
    assert main(["hparams", PATH, *arguments]) == 0
    own = json.loads(capsys.readouterr().out)
    shared = ("lr", "weight_decay", "batch_size", "dropout")
    assert {name: own.pop(name) for name in shared} == {name: fishr[name] for name in shared}
    first, second = (
        np.random.RandomState(domainbed_hash(domainbed_hash(7, 1), key)).uniform()
        for key in ("worst_pair_lambda", "worst_pair_warmup")
    )
    assert own == {
        "penalty_weight": pytest.approx(10 ** (-1 + 5 * first), rel=1e-12),
        "warmup_steps": math.floor(2000 * second),
    }


@pytest.mark.usefixtures("guide")
def test_commands_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^    shoal (.*)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        assert main(shlex.split(command)) == 0, capsys.readouterr().err


@pytest.mark.usefixtures("guide")
def test_python_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, "")
    _, *rest = python_blocks(GUIDE)
    assert rest
    for line, code in rest:
        exec(compile("\n" * line + code, str(GUIDE), "exec"), {"__name__": "guide"})
    assert "'penalty': " in capsys.readouterr().out


def oracle(plain: Plain, batches: list[Batch], step: int) -> Tensor:
    """Every pair of domains, and the largest gap among them."""
    risks = [plain.risk(batch) for batch in batches]
    gaps = [(a - b) ** 2 for a, b in combinations(risks, 2)]
    worst = torch.zeros((), dtype=torch.float64)
    for gap in gaps:
        worst = torch.maximum(worst, gap)
    examples = sum(len(labels) for _, labels in batches)
    risk = torch.stack([r * len(y) for r, (_, y) in zip(risks, batches, strict=True)]).sum()
    loss = risk / examples + (25.0 if step >= 2 else 0.0) * worst
    plain.adam().step(plain.weights, plain.gradients(loss))
    return loss


@pytest.mark.usefixtures("guide")
@pytest.mark.parametrize("sizes", [(4, 6, 5), (3, 3), (5,)])
def test_it_trains_as_it_says(sizes: tuple[int, ...]) -> None:
    kind = algorithm(PATH)
    chosen = replace(kind.Hparams(), lr=0.01, penalty_weight=25.0, warmup_steps=2)
    compare(kind(tiny(), len(sizes), chosen), oracle, steps=5, sizes=sizes)


@pytest.mark.usefixtures("guide")
def test_it_keeps_the_contract_of_all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "own", algorithm(PATH))
    test_contract.test_terms_are_scalars_without_a_graph("own")
    test_contract.test_any_number_of_domains_of_any_size("own", (1, 4, 1), torch.float32)
    test_contract.test_the_order_of_domains_does_not_matter("own")
    test_contract.test_resuming_equals_never_stopping("own")
    test_contract.test_every_rule_with_schedule_and_clipping("own", "sgd")
    test_contract.test_a_step_asks_nothing_and_keeps_its_addresses("own")
    test_contract.test_without_weight_and_warm_up_it_is_erm_bit_for_bit("own", (4, 6, 5))
    test_contract.test_its_weight_matters("own")


# Places of its file


def test_from_a_package_of_the_current_folder(guide: Path) -> None:
    (guide / "mine").mkdir()
    (guide / "mine" / "__init__.py").touch()
    (guide / NAME).rename(guide / "mine" / NAME)
    kind = algorithm("mine.worst_pair:WorstPair")
    assert kind.__name__ == "WorstPair"
    assert kind.__module__ == "mine.worst_pair"
    assert str(guide) in sys.path


def test_from_a_file_elsewhere(
    guide: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its neighbours are found; a module of the same name is not hidden."""
    (guide / "neighbour.py").write_text("from worst_pair_base import x\n")
    (guide / "worst_pair_base.py").write_text("x = 1\n")
    code = "from __future__ import annotations\nimport neighbour\n"
    (guide / "json.py").write_text(code + (guide / NAME).read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert algorithm(f"{guide}/json.py:WorstPair").Hparams().lr == 1e-3
    assert sys.modules["json"] is json
    relative = os.path.relpath(guide)
    assert algorithm(f"{relative}/json.py:WorstPair").__name__ == "WorstPair"


def test_a_name_of_the_registry() -> None:
    assert algorithm("fishr") is ALGORITHMS["fishr"]
    with pytest.raises(ValueError, match="unknown algorithm 'fisher'; did you mean 'fishr'"):
        algorithm("fisher")


@pytest.mark.parametrize("text", [PATH, "worst_pair:WorstPair"])
def test_the_registry_imports_nothing(guide: Path, text: str) -> None:
    """A name that is read from a file must not run code."""
    (guide / NAME).write_text("raise SystemExit('ran')")
    with pytest.raises(ValueError, match="unknown algorithm"):
        find(text)


# Errors


def test_no_such_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no file lost/own.py" in said("lost/own.py:Own", capsys)


def test_no_such_module(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine").mkdir()
    for text in ("lost:Own", "lost.own:Own", "mine.own:Own"):
        err = said(text, capsys)
        assert f"there is no module {text.partition(':')[0]}" in err and str(folder) in err


@pytest.mark.parametrize("text", [":Own", "..own:Own", "own/own:Own", "own own:Own"])
def test_neither_module_nor_file(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "package.module:Class or path/to/file.py:Class" in said(text, capsys)


@pytest.mark.usefixtures("guide")
@pytest.mark.parametrize("text", [NAME, f"./{NAME}", "package.module"])
def test_no_class_named(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{text} names no class; write {text}:Class" in said(text, capsys)


@pytest.mark.usefixtures("guide")
def test_no_such_class(capsys: pytest.CaptureFixture[str]) -> None:
    err = said(f"{NAME}:WorstPiar", capsys)
    assert f"{NAME} has no class 'WorstPiar'; its algorithms: WorstPair\n" in err
    assert "has no class ''" in said(f"{NAME}:", capsys)


@pytest.mark.usefixtures("guide")
@pytest.mark.parametrize("name", ["WorstPairHparams", "dataclass", "Tensor"])
def test_no_algorithm(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    err = said(f"{NAME}:{name}", capsys)
    assert f"{NAME}:{name} is not an Algorithm" in err and "Penalised" in err


HEAD = """from dataclasses import dataclass
from shoal.algorithms import Algorithm, Hparams, Objective, Penalised, UpdateAlgorithm
from shoal.algorithms import constant, hparam
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("class Own(Penalised): pass", "own.py:Own is abstract; define penalty(forward)"),
        ("class Own(Objective): pass", "own.py:Own is abstract; define objective(forward)"),
        ("class Own(UpdateAlgorithm): pass", "own.py:Own is abstract; define update(batches)"),
        ("class Own(Algorithm): pass", "define predict(inputs) and update(batches)"),
        (
            "@dataclass(frozen=True)\nclass H(Hparams):\n    width: int = 3\n"
            "class Own(Penalised):\n    Hparams = H\n    penalty = len",
            "own.py:Own: H.width has no default or no search; declare it with hparam(...)",
        ),
        (
            "class H(Hparams):\n    width: int = hparam(3, constant(3), key='w', help='w')\n"
            "class Own(Penalised):\n    Hparams = H\n    penalty = len",
            "own.py:Own: H.width is not a field; decorate H with @dataclass(frozen=True)",
        ),
        (
            "@dataclass(frozen=True)\nclass H(Hparams):\n"
            "    width: list = hparam(3, constant(3), key='w', help='w')\n"
            "class Own(Penalised):\n    Hparams = H\n    penalty = len",
            "own.py:Own: H.width must be one of bool, int, float, str",
        ),
        (
            "class Own(Penalised):\n    Hparams = dict\n    penalty = len",
            "own.py:Own: Hparams must be a subclass of shoal.algorithms.Hparams",
        ),
        (
            "class Own(Penalised):\n    Hparams = Hparams(lr=1.0)\n    penalty = len",
            "own.py:Own: Hparams must be a subclass of shoal.algorithms.Hparams",
        ),
        ("class Own(Penalised)\n    pass", "own.py cannot be imported: SyntaxError"),
        ("\nclass Own(Penalized): pass", "NameError: name 'Penalized' is not defined"),
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        (
            "@dataclass\nclass H(Hparams):\n    pass",
            "TypeError: cannot inherit non-frozen dataclass from a frozen one",
        ),
    ],
)
@pytest.mark.parametrize("text", ["own.py:Own", "own:Own"])
def test_what_is_wrong_is_said(
    folder: Path, text: str, code: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "own.py").write_text(HEAD + code)
    err = said(text, capsys)
    assert why.replace("own.py", text.partition(":")[0]) in err
    if "cannot be imported" in err:
        assert re.search(r"own\.py, line [45]\)", err), err
    assert "shoal_own_own" not in sys.modules or "cannot be imported" not in err


def test_what_it_says_of_the_base_itself(capsys: pytest.CaptureFixture[str]) -> None:
    err = said("shoal.algorithms.base:Penalised", capsys)
    assert "is abstract; define penalty(forward)" in err
    assert issubclass(algorithm("shoal.algorithms.erm:ERM"), Algorithm)


# In the tree


def test_a_method_in_the_tree_is_one_file_and_one_line(guide: Path) -> None:
    """The guide's file next to the others, with its paper, and a line in the catalogue."""
    package = guide / "shoal"
    shutil.copytree(ROOT / "src" / "shoal", package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (guide / NAME).read_text("utf-8")
    paper = '    paper = "A paper that nobody has written"\n    year = 2026\n'
    declared = "    Hparams = WorstPairHparams\n"
    assert declared in code
    (package / "algorithms" / NAME).write_text(code.replace(declared, paper + declared), "utf-8")
    catalogue = package / "catalogue.py"
    lines = catalogue.read_text("utf-8").splitlines()
    lines.insert(
        lines.index("METHODS = {") + 1,
        '    "worst-pair": MethodFacts("Worst pair", "WorstPair"),',
    )
    catalogue.write_text("\n".join(lines), "utf-8")
    script = """
import shoal.cli
from shoal.algorithms import find
from shoal.catalogue import title_of

print(shoal.__file__)
print(find("worst-pair").__name__, title_of("worst-pair"))
assert shoal.cli.main(["list", "algorithms"]) == 0
assert shoal.cli.main(["hparams", "worst-pair", "--dataset", "pacs", "--draw", "7"]) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(guide)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    where, method, *shown = done.stdout.splitlines()
    assert Path(where).parent == package
    assert method == "WorstPair Worst pair"
    assert any("worst-pair" in line and "2026" in line for line in shown)
    assert any("worst_pair_lambda" in line for line in shown)


# Names of earlier versions


def test_old_import_paths_lead_to_the_same_classes() -> None:
    import shoal.algorithms as all_of_it
    from shoal.algorithms import base, forward, hparams, optimiser

    names = {
        base: "Algorithm Objective Penalised UpdateAlgorithm",
        forward: "Batch Forward",
        hparams: "Hparams choice constant fixed hparam later power uniform whole whole_power",
        optimiser: "Optimisation Optimiser",
    }
    for module, listed in names.items():
        for name in listed.split():
            assert getattr(module, name) is getattr(all_of_it, name)
    assert base.Classifying is all_of_it.UpdateAlgorithm


OLD_NAMES = """
from shoal.algorithms.base import Classifying, Penalised


class OfAClass(Penalised):
    apart = True

    def penalty(self, forward):
        assert self.apart and not self.individual
        grads = torch.autograd.grad(
            forward.domain_losses[0].mean(), self.model.classifier.weight, create_graph=True
        )
        return grads[0].square().sum()


class OfAnInstance(Penalised):
    individual = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.individual = "features"

    def penalty(self, forward):
        return forward.variance().square().sum()


class Batchwise(Classifying):
    together = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.optimiser = Optimiser(self.model.parameters(), self.hparams.lr)

    def update(self, batches):
        loss = Forward.of(self.model, batches).risk
        self.optimiser.minimise(loss, self.sound)
        return self.report(loss=loss)
"""
NEW_NAMES = {
    "apart": "separate_passes",
    "individual": "record_gradients_of",
    "together": "predicts_batchwise",
    "sound": "all_finite",
    "Classifying": "UpdateAlgorithm",
}


@pytest.mark.parametrize("name", ["OfAClass", "OfAnInstance", "Batchwise"])
def test_a_class_with_old_names_trains_as_one_with_new_names(name: str) -> None:
    head = "import torch\nfrom shoal.algorithms import Forward, Optimiser\n"
    renamed = OLD_NAMES
    for old, new in NEW_NAMES.items():
        renamed = re.sub(rf"\b{old}\b", new, renamed)
    assert renamed != OLD_NAMES
    methods = []
    for code in (OLD_NAMES, renamed):
        namespace: dict[str, type[Algorithm]] = {}
        exec(head + code, namespace)
        methods.append(namespace[name](tiny(), 3))
    for step in range(3):
        terms = [method.update(make_batches(step)) for method in methods]
        assert terms[0].keys() == terms[1].keys()
        assert all(torch.equal(terms[0][key], terms[1][key]) for key in terms[0])
    old_state, new_state = (method.state_dict() for method in methods)
    assert list(old_state) == list(new_state)
    assert all(torch.equal(old_state[key], new_state[key]) for key in old_state)
    assert type(methods[0]).predicts_batchwise is (name == "Batchwise")
