"""torchvision beside a torch that it was not built for: the reason, the advice, and the mending."""

from pathlib import Path

import pytest

from tests.processes import run_code

# What torchvision's wheels do: they name operators of their compiled part while they are imported.
PACKAGE = """
import torch
torch.library.register_fake("torchvision::nms")(lambda dets, scores, threshold: dets.new_empty(0))
torch.library.register_fake("torchvision::qnms")(lambda dets, scores, threshold: dets.new_empty(0))
from torchvision import models
"""
MODELS = """
def list_models(module=None):
    return ["tiny"]
"""


@pytest.fixture
def unfitting(tmp_path: Path) -> Path:
    """A folder with a torchvision whose compiled part is missing."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE)
    (package / "models.py").write_text(MODELS)
    return tmp_path


def test_the_message_says_why_and_what_to_do(unfitting: Path) -> None:
    code = "from shoal.networks.backbones import check_backbone; check_backbone('torchvision:tiny')"
    done = run_code(code, [unfitting])
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    for part in (
        "ImportError: torchvision:tiny needs shoal[vision]",
        "built for another torch",
        "operator torchvision::nms does not exist",
        "pip install --force-reinstall torch torchvision --index-url",
        "mend_torchvision()",
    ):
        assert part in message


def test_an_unknown_network_names_the_reason_too(unfitting: Path) -> None:
    code = "from shoal.networks.registry import backbone_name; backbone_name('tiny')"
    message = run_code(code, [unfitting]).stderr.splitlines()[-1]
    assert "unknown backbone 'tiny'" in message and "mobilenet-v2" in message
    assert "for more: torchvision is installed, but was built for another torch" in message
    code = "from shoal.vision import mend_torchvision; mend_torchvision(); " + code
    code = code.replace("backbone_name('tiny')", "print(backbone_name('tiny'))")
    assert "torchvision:tiny" in run_code(code, [unfitting]).stdout


def test_mended_it_can_be_imported(unfitting: Path) -> None:
    assert "torchvision::nms does not exist" in run_code("import torchvision", [unfitting]).stderr
    code = "from shoal.vision import mend_torchvision as m; print(m(), m()); import torchvision; "
    # An operator without an implementation does not pretend to have one.
    code += "import torch; x = torch.ones(1, 4); torch.ops.torchvision.nms(x, x[0], 0.5)"
    done = run_code(code, [unfitting])
    assert done.stdout == "True False\n", done.stderr
    assert "NotImplementedError" in done.stderr


def test_other_faults_are_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('no disk')")
    done = run_code("from shoal.vision import mend_torchvision; mend_torchvision()", [tmp_path])
    assert "RuntimeError: no disk" in done.stderr
    code = "from shoal.networks.backbones import check_backbone; check_backbone('torchvision:tiny')"
    message = run_code(code, [tmp_path]).stderr.splitlines()[-1]
    assert "cannot be imported beside torch" in message and "(no disk)" in message


def test_without_torchvision_nothing_happens() -> None:
    code = "import sys; sys.modules['torchvision'] = None\n"
    code += "from shoal.vision import mend_torchvision; print(mend_torchvision())"
    assert run_code(code).stdout == "False\n"
