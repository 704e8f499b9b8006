"""Methods by name, by variant, or a user's own class by path: the only import of user code."""

import hashlib
import inspect
import sys
import traceback
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ..algorithms import VARIANTS, find
from ..algorithms.base import Algorithm
from ..algorithms.hparams import Hparams, searches
from ..catalogue import SCALES
from ..files import JSON_BYTES, read_bytes


def with_settings(text: str) -> tuple[type[Algorithm], dict[str, str]]:
    """Return the method or variant that ``text`` names, and the variant's settings."""
    if text in VARIANTS:
        variant = VARIANTS[text]
        return find(variant.algorithm), dict(variant.settings)
    return algorithm(text), {}


def name_of(text: str, method: type[Algorithm]) -> str:
    """Return the method's name in a run; a user's own class gets a hash of its file.

    Another version of the code is another method; the folder of the file does not matter.
    """
    where, colon, name = text.rpartition(":")
    if not colon:
        return text
    source = inspect.getsourcefile(method)
    code = read_bytes(source, JSON_BYTES) if source else b""
    return f"{Path(where).name}:{name}@{hashlib.sha256(code).hexdigest()[:8]}"


def algorithm(text: str) -> type[Algorithm]:
    """Return the method that ``text`` names; raise with the reason if it cannot be built.

    Args:
        text: a name of the registry, ``package.module:Class`` (the current folder is searched
            first) or ``path/to/file.py:Class``.
    """
    where, colon, name = text.rpartition(":")
    if not colon:
        if "." in text or "/" in text:
            raise ValueError(f"{text} names no class; write {text}:Class")
        return find(text)
    module = _module(where)
    if not hasattr(module, name):
        offered = ", ".join(_methods(module)) or "none"
        raise ValueError(f"{where} has no class {name!r}; its algorithms: {offered}")
    return _checked(text, getattr(module, name))


def _module(where: str) -> ModuleType:
    path = Path(where).absolute()
    is_file = where.endswith(".py")
    if is_file and not path.is_file():
        raise ValueError(f"there is no file {where}")
    if not is_file and not all(part.isidentifier() for part in where.split(".")):
        raise ValueError(
            f"{where!r} is neither a module nor a file; write package.module:Class or "
            "path/to/file.py:Class"
        )
    folder = path.parent if is_file else Path.cwd()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # as Python does for a script and for -m
    try:
        return _from_file(path) if is_file else import_module(where)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{where}.".startswith(f"{error.name}."):
            raise ValueError(f"there is no module {where} in {folder}, nor installed") from None
        lines = [
            f" ({frame.filename}, line {frame.lineno})"
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).is_relative_to(folder)
        ]
        why = f"{type(error).__name__}: {error}{lines[-1] if lines else ''}"
        raise ValueError(f"{where} cannot be imported: {why}") from error


def _from_file(path: Path) -> ModuleType:
    # Registered, because dataclasses look there, under a name that hides no other module.
    spec = spec_from_file_location(f"shoal_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _methods(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Algorithm)
        and value.__module__ == module.__name__
    ]


def _checked(text: str, found: object) -> type[Algorithm]:
    if not isinstance(found, type) or not issubclass(found, Algorithm):
        raise ValueError(
            f"{text} is not an Algorithm; derive a class from Penalised, Objective or "
            "UpdateAlgorithm of shoal.algorithms"
        )
    doors = [
        f"{door}({', '.join(list(inspect.signature(getattr(found, door)).parameters)[1:])})"
        for door in sorted(found.__abstractmethods__)
    ]
    if doors:
        raise ValueError(f"{text} is abstract; define {' and '.join(doors)}")
    if not isinstance(found.Hparams, type) or not issubclass(found.Hparams, Hparams):
        raise ValueError(
            f"{text}: Hparams must be a subclass of shoal.algorithms.Hparams, got {found.Hparams!r}"
        )
    try:
        searches(found.Hparams, SCALES[0])
    except TypeError as error:
        raise ValueError(f"{text}: {error}") from error
    return found
