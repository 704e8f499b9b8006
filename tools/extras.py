"""Extras and torch: which extras of shoal would replace the torch that is installed.

    python tools/extras.py                    # in a new environment with the pinned torch
    python tools/extras.py --python ENV/bin/python

Every extra is resolved by pip without being installed. Exit status 1 if an extra that does not say
so would replace torch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# These bring torchvision, which fits one version and one build of torch; docs/README.md says so.
MAY_REPLACE = ("vision",)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", type=Path, help="of an environment with torch")
    parser.add_argument("--extras", nargs="+", help="these alone (default: all)")
    options = parser.parse_args()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = options.extras or sorted(project["optional-dependencies"])
    with tempfile.TemporaryDirectory() as folder:
        python = options.python or new_environment(Path(folder))
        installed = torch_version(python)
        print(f"installed: torch {installed}")
        wrong = []
        for extra in extras:
            packages = resolve(python, extra, Path(folder) / "report.json")
            replaced = packages.get("torch")
            verdict = "torch stays" if replaced is None else f"replaced by torch {replaced}"
            if replaced is not None and extra in MAY_REPLACE:
                verdict += ", as it says"
            elif replaced is not None:
                wrong.append(extra)
            print(f"{extra:<14}{len(packages):>4} packages  {verdict}", flush=True)
    if wrong:
        print(f"These extras replace torch: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def new_environment(folder: Path) -> Path:
    """Return the Python of an environment in ``folder`` that has the pinned torch alone."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").split()
    torch = next(line for line in lines if line.startswith("torch=="))
    pip(python, "install", "--no-compile", torch)
    return python


def torch_version(python: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def resolve(python: Path, extra: str, report: Path) -> dict[str, str]:
    """Return the packages that pip would install for an extra, with their versions."""
    wanted = f"{REPOSITORY}[{extra}]"
    pip(python, "install", "--dry-run", "--report", str(report), wanted)
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in found}


def pip(python: Path, *arguments: str) -> None:
    quiet = ["-qq", "--disable-pip-version-check"]
    subprocess.run([str(python), "-m", "pip", *arguments, *quiet], check=True)


if __name__ == "__main__":
    sys.exit(main())
