"""Release: build wheel and sdist, check them, try the wheel in a bare environment, write the notes.

    python tools/release.py

Everything is made in dist/ and build/release/. Nothing is tagged or uploaded; the last lines say
how to do that.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK, DIST = ROOT / "build" / "release", ROOT / "dist"
# Extras for the demo and for a fit of a table.
EXTRAS = "cli,report"
# What a user cannot do without: the embedded digits, the pages, the published numbers.
IN_WHEEL = (
    "shoal/py.typed",
    *(f"shoal/datasets/embedded/{name}-labels.xz" for name in ("train", "t10k")),
    *(f"shoal/datasets/embedded/{name}-images.grey.gz" for name in ("train", "t10k")),
    *(f"shoal/datasets/embedded/{name}-images.ink.xz" for name in ("train", "t10k")),
    "shoal/report/demo.html",
    "shoal/report/fit.html.jinja",
    "shoal/reference/benchmark.json",
)
IN_SDIST = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "NOTICE", "README.md", "constraints.txt")
# Names of files that nobody means to publish.
SECRET = re.compile(r"(^|/)(\.env|\.netrc|\.pypirc|id_[a-z0-9]+|.*\.(pem|key|p12))$")


def main() -> int:
    """Make a release in ``dist``; return the exit status."""
    version = current_version(ROOT)
    notes = notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if changed := run("git", "status", "--porcelain", quiet=True):
        raise SystemExit(f"release: commit or remove these first:\n{changed}")
    for folder in (WORK, DIST):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    step(f"shoal {version}: build wheel and sdist")
    tools = make_environment(WORK / "tools", "build", "twine")
    run(tools, "-m", "build", "--outdir", str(DIST), str(ROOT), quiet=True)
    wheel, sdist = DIST / f"shoal-{version}-py3-none-any.whl", DIST / f"shoal-{version}.tar.gz"
    for path in (wheel, sdist):
        print(f"  {path.name}: {path.stat().st_size / 1e6:.1f} MB")

    step("check them")
    run(tools, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    with zipfile.ZipFile(wheel) as archive:
        check_wheel(archive.namelist(), version)
        metadata = archive.read(f"shoal-{version}.dist-info/METADATA").decode()
    check_metadata(metadata)
    with tarfile.open(sdist) as archive:
        names = [one.name.partition("/")[2] for one in archive if one.isfile()]
    check_sdist(names, run("git", "ls-files", quiet=True).splitlines())

    step("install the wheel alone, and try every command without its extra")
    bare = make_environment(WORK / "bare", "-c", str(ROOT / "constraints.txt"), str(wheel))
    where = run(bare, "-c", "import shoal, torch; print(shoal.__file__, torch.__version__)")
    if str(WORK) not in where:
        raise SystemExit(f"release: imported another shoal: {where}")
    run(bare, str(ROOT / "tests" / "cli" / "without_extras.py"))

    step(f"with the extras {EXTRAS}: the demo, and a fit of a table")
    pip(bare, "-c", str(ROOT / "constraints.txt"), f"{wheel}[{EXTRAS}]")
    torch = run(bare, "-c", "import torch; print(torch.__version__)", quiet=True)
    if torch not in where:
        raise SystemExit(f"release: the extras replaced torch: now {torch}, before {where}")
    run(bare, "-m", "shoal", "demo", "--steps", "30", "-q")
    write_table(WORK / "patients.csv")
    fit = "fit patients.csv --domain-column site --class-column outcome --only erm fishr --steps 50"
    run(bare, "-m", "shoal", *fit.split(), "--runs", "6", "--trials", "1", "-q")
    run(bare, "-m", "shoal", "predict", "out/patients-fit", "patients.csv", "--csv", quiet=True)

    path = DIST / f"notes-{version}.md"
    path.write_text(notes, encoding="utf-8")
    step(f"all is well; the notes are {path.relative_to(ROOT)}. To publish:")
    print(f"  git tag --annotate v{version} --cleanup=verbatim --file {path.relative_to(ROOT)}")
    print(f"  git push origin v{version}")
    print(f"  {WORK.relative_to(ROOT)}/tools/bin/twine upload dist/shoal-{version}*")
    return 0


def current_version(root: Path) -> str:
    """Return the version in the source."""
    text = (root / "src" / "shoal" / "_version.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(\d+\.\d+\.\d+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit("release: src/shoal/_version.py has no version such as 0.2.0")
    return found[1]


def notes_of(changelog: str, version: str) -> str:
    """Return the section of a version, without its heading; it must be dated and first."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    heading, _, notes = sections[0].partition("\n") if sections else ("", "", "")
    if not re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", heading):
        raise SystemExit(
            f"release: the first section of CHANGELOG.md must be '## [{version}] - ' and a date, "
            f"got {heading!r}"
        )
    if not notes.strip():
        raise SystemExit(f"release: CHANGELOG.md says nothing about {version}")
    return f"{notes.strip()}\n"


def check_wheel(names: Collection[str], version: str) -> None:
    """Raise unless the wheel has the package, its data and its licences, and nothing else."""
    info = f"shoal-{version}.dist-info/"
    wanted = {*IN_WHEEL, f"{info}licenses/LICENSE", f"{info}licenses/NOTICE"}
    if missing := sorted(wanted - set(names)):
        raise SystemExit(f"release: the wheel lacks {', '.join(missing)}")
    if others := sorted(name for name in names if not name.startswith(("shoal/", info))):
        raise SystemExit(f"release: the wheel has {', '.join(others)}")
    check_names(names)


def check_sdist(names: Collection[str], tracked: Iterable[str]) -> None:
    """Raise unless all files of the sdist are in the repository, and what a packager needs is."""
    if others := sorted(set(names) - {*tracked, "PKG-INFO"}):
        raise SystemExit(f"release: the sdist has files that git does not know: {others[:5]}")
    if missing := sorted(set(IN_SDIST) - set(names)):
        raise SystemExit(f"release: the sdist lacks {', '.join(missing)}")
    if not any(name.startswith("tests/") for name in names):
        raise SystemExit("release: the sdist has no tests")
    check_names(names)


def check_names(names: Iterable[str]) -> None:
    """Raise if a file looks like a secret, or like what a program left behind."""
    wrong = [name for name in names if SECRET.search(name) or "__pycache__" in name]
    if wrong:
        raise SystemExit(f"release: these must not be published: {', '.join(sorted(wrong))}")


def check_metadata(text: str) -> None:
    """Raise if the readme has a link that leads nowhere on PyPI, or an address is missing."""
    relative = re.findall(r"\]\((?!https?://|#)([^)]*)\)", text)
    if relative:
        raise SystemExit(f"release: links of the readme that are not absolute: {relative[:5]}")
    for name in ("Repository", "Documentation", "Changelog", "Issues", "Paper"):
        if f"Project-URL: {name}, https://" not in text:
            raise SystemExit(f"release: the metadata has no address of {name}")


def write_table(path: Path) -> None:
    """Write a small table of three sites."""
    rows = [f"{'abc'[n % 3]},{n * 7 % 10},{n % 5},{('no', 'yes')[n % 2]}" for n in range(90)]
    path.write_text("\n".join(["site,age,dose,outcome", *rows, ""]), encoding="utf-8")


def make_environment(folder: Path, *packages: str) -> str:
    """Return the Python of a new environment with these packages."""
    run(sys.executable, "-m", "venv", str(folder), quiet=True)
    python = str(folder / "bin" / "python")
    pip(python, *packages)
    return python


def pip(python: str, *packages: str) -> None:
    """Install packages."""
    run(python, "-m", "pip", "-q", "--disable-pip-version-check", "install", *packages, quiet=True)


def run(*command: str, quiet: bool = False) -> str:
    """Run a command in the folder of the release; return what it printed, or end with its error."""
    where = ROOT if command[0] == "git" else WORK
    # Without PYTHONPATH: only what is installed counts.
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = found | {"NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=where, env=environment
    )
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
        raise SystemExit(f"release: {' '.join(command)} ended with {done.returncode}")
    if not quiet:
        print("".join(f"  {line}\n" for line in done.stdout.splitlines()), end="", flush=True)
    return done.stdout.strip()


def step(title: str) -> None:
    """Print what comes next."""
    print(title, flush=True)


if __name__ == "__main__":
    sys.exit(main())
