"""Release: one version everywhere, notes from the changelog, archives that are what they say."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

import shoal

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
HOOK = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]


def load_tool(name: str) -> Any:
    """Return a script of ``tools`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load_tool("release")


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text("utf-8")


def citation() -> Any:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))


# The version


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT["project"] and "version" in PROJECT["project"]["dynamic"]
    path = PROJECT["tool"]["hatch"]["version"]["path"]
    assert (ROOT / path).resolve() == (Path(shoal.__file__).parent / "_version.py").resolve()
    assert release.current_version(ROOT) == shoal.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", shoal.__version__)


def test_all_that_names_the_version_agrees() -> None:
    heading = re.findall(r"^## \[(.*?)\] - (.*)$", changelog(), re.MULTILINE)[0]
    assert heading == (shoal.__version__, str(citation()["date-released"]))
    assert citation()["version"] == shoal.__version__


def test_the_identity_of_a_run_does_not_depend_on_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a new version would train everything again; see also test_fixtures.py."""
    from shoal.runs.run import Protocol, Run

    def identity() -> str:
        return Run(
            dataset="photos",
            fingerprint="0",
            algorithm="erm",
            test_domains=("a",),
            trial=0,
            draw=0,
            hparams={},
            protocol=Protocol(),
        ).identity

    before = identity()
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("shoal") and hasattr(module, "__version__"):
            monkeypatch.setattr(module, "__version__", "9.9.9")
    assert identity() == before


def test_the_repository_is_named_in_one_place() -> None:
    repository = HOOK["repository"]
    named = [
        str(path.relative_to(ROOT))
        for pattern in ("*.md", "*.toml", "*.cff", "docs/**/*.md", "src/**/*.py", "tools/*.py")
        for path in ROOT.glob(pattern)
        if repository in path.read_text("utf-8")
    ]
    assert sorted(named) == ["CITATION.cff", "pyproject.toml"]  # the first is for other programs
    assert citation()["repository-code"] == repository


def test_the_citation_has_the_paper() -> None:
    (paper,) = citation()["references"]
    assert [one["family-names"] for one in paper["authors"]] == ["Ramé", "Dancette", "Cord"]
    assert paper["url"] == HOOK["paper"] == "https://arxiv.org/abs/2109.02934"
    assert HOOK["paper"] in (ROOT / "README.md").read_text("utf-8")


# The notes


def test_notes_are_the_section_of_the_version() -> None:
    notes = release.notes_of(changelog(), shoal.__version__)
    assert "### Added" in notes and "## [" not in notes
    assert notes.strip() in changelog()
    text = "# Changelog\n\n## [1.2.3] - 2030-01-02\n\nNew.\n\n## [1.2.2] - 2029-01-02\n\nOld.\n"
    assert release.notes_of(text, "1.2.3") == "New.\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("## [1.2.2] - 2029-01-02\n\nOld.\n", "must be '## .1.2.3. - ' and a date"),
        ("## [1.2.3] - unreleased\n\nNew.\n", "must be '## .1.2.3. - ' and a date"),
        ("## [1.2.3] - 2030-01-02\n\n## [1.2.2] - 2029-01-02\n", "says nothing about 1.2.3"),
        ("", "must be"),
    ],
)
def test_a_version_without_notes_is_refused(text: str, why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        release.notes_of(text, "1.2.3")


# The archives

WHEEL = (
    *release.IN_WHEEL,
    "shoal/__init__.py",
    "shoal-1.0.0.dist-info/METADATA",
    "shoal-1.0.0.dist-info/licenses/LICENSE",
    "shoal-1.0.0.dist-info/licenses/NOTICE",
)
SDIST = (*release.IN_SDIST, "PKG-INFO", "src/shoal/__init__.py", "tests/test_release.py")


def test_what_must_be_in_the_wheel_is_in_the_source() -> None:
    for name in release.IN_WHEEL:
        assert (ROOT / "src" / name).is_file(), name
    embedded = {path.name for path in (ROOT / "src/shoal/datasets/embedded").glob("*.[gx]z")}
    assert embedded == {Path(name).name for name in release.IN_WHEEL if "/embedded/" in name}


def test_whole_archives_pass() -> None:
    release.check_wheel(WHEEL, "1.0.0")
    release.check_sdist(SDIST, SDIST)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([name for name in WHEEL if "train-labels" not in name], "lacks .*train-labels.xz"),
        ([name for name in WHEEL if "NOTICE" not in name], "lacks .*NOTICE"),
        ([*WHEEL, "tests/test_cli.py"], "has tests/test_cli.py"),
        ([*WHEEL, "shoal/__pycache__/x.pyc"], "must not be published"),
        ([*WHEEL, "shoal/.env"], "must not be published"),
        ([*WHEEL, "shoal/server.key"], "must not be published"),
    ],
)
def test_a_wrong_wheel_is_found(names: list[str], why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        release.check_wheel(names, "1.0.0")


@pytest.mark.parametrize(
    ("names", "tracked", "why"),
    [
        ([*SDIST, "notes.txt"], SDIST, "git does not know: .*notes.txt"),
        ([name for name in SDIST if name != "CITATION.cff"], SDIST, "lacks CITATION.cff"),
        ([name for name in SDIST if not name.startswith("tests")], SDIST, "no tests"),
        ([*SDIST, "tests/id_rsa"], [*SDIST, "tests/id_rsa"], "must not be published: tests/id_rsa"),
    ],
)
def test_a_wrong_sdist_is_found(names: list[str], tracked: list[str], why: str) -> None:
    with pytest.raises(SystemExit, match=why):
        release.check_sdist(names, tracked)


# The page on PyPI


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook of the build, which need not be installed here."""
    name = "hatchling.metadata.plugin.interface"
    interface = ModuleType(name)
    interface.MetadataHookInterface = SimpleNamespace  # type: ignore[attr-defined]
    parts = name.split(".")
    for k in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:k]), ModuleType(parts[k - 1]))
    monkeypatch.setitem(sys.modules, name, interface)
    return load_tool("pypi_metadata")


def test_links_and_pictures_work_on_pypi(metadata: Any) -> None:
    hook = metadata.PyPIMetadata(root=str(ROOT), config=HOOK)
    found: dict[str, Any] = {"version": "1.2.3"}
    hook.update(found)
    text, before = found["readme"]["text"], (ROOT / "README.md").read_text("utf-8")
    addresses = "".join(f"Project-URL: {k}, {v}\n" for k, v in found["urls"].items())
    release.check_metadata(addresses + text)
    repository = HOOK["repository"]
    made = re.findall(rf"{repository}/(blob|raw)/v1\.2\.3/([^)#]+)", text)
    assert len(made) == len(re.findall(r"\]\((?!https?://|#)", before)) > 20
    for kind, path in made:
        assert (ROOT / path).exists(), path
        assert (kind == "raw") == path.endswith(".png")
    # Nothing else has changed: code, tables and other links.
    assert re.sub(rf"{repository}/(blob|raw)/v1\.2\.3/", "", text) == before


def test_a_link_that_leads_nowhere_on_pypi_is_found() -> None:
    with pytest.raises(SystemExit, match=r"not absolute: \['docs/README.md'\]"):
        release.check_metadata("[docs](docs/README.md)")
    with pytest.raises(SystemExit, match="no address of Repository"):
        release.check_metadata("[docs](https://example.org)")


def test_the_metadata_says_what_is_tested() -> None:
    found = PROJECT["project"]["classifiers"]
    systems = [line for line in found if line.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert PROJECT["project"]["authors"] and PROJECT["project"]["license"] == "Apache-2.0"


# Files for other programs


def test_pre_commit_has_the_linters_of_the_constraints() -> None:
    pins = (ROOT / "constraints.txt").read_text("utf-8")
    found = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    (ruff,) = [one for one in found["repos"] if "ruff" in one["repo"]]
    assert f"\nruff=={ruff['rev'].removeprefix('v')}\n" in pins


def test_the_workflow_runs_targets_that_exist() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert {"test", "matrix", "docs", "package"} <= jobs.keys()
    versions = jobs["matrix"]["strategy"]["matrix"]
    assert len(versions["torch"]) > 2 and {"3.11", "3.13"} <= set(versions["python"])
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for target in set(re.findall(r"\bmake ([a-z]+)", text)):
        assert target in targets
    for path in re.findall(r"\btests/[\w/.]+", text):
        assert (ROOT / path).exists(), path
    # Without quotes, the shell on Windows takes a comma for the end of an argument.
    assert all(f"'{one}'" in text for one in re.findall(r"\.\[[\w,]+\]", text))
