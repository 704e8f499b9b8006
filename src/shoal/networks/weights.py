"""Weight files: read as tensors only, refused with a reason if they do not fit."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from ..choices import choose
from ..files import TENSOR_BYTES, open_file

# Where torchvision's weights lie; the paper's are the first version.
ADDRESS = "https://download.pytorch.org/models/"
FIRST = "IMAGENET1K_V1"


def load_weights(
    module: nn.Module,
    path: str | Path,
    heads: Iterable[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Load the state dict at ``path`` into ``module``; nothing changes if it does not fit.

    Args:
        module: the network, its heads removed.
        path: a file of ``torch.save(model.state_dict(), path)``, or a .safetensors file.
        heads: names of the removed heads; their weights in the file are ignored.
        renamed: names in the file that are other names in the module.
    """
    removed = tuple(f"{head}." for head in heads)
    found = {
        (renamed or {}).get(name, name): value
        for name, value in _read(Path(path)).items()
        if not name.startswith(removed)
    }
    wanted = module.state_dict()
    # Files from before torch 0.4.1 have no count of batches, and nothing here needs it.
    missing = [
        name for name in wanted if name not in found and not name.endswith("num_batches_tracked")
    ]
    unexpected = [name for name in found if name not in wanted]
    shapes = [
        f"{name} {list(value.shape)} for {list(wanted[name].shape)}"
        for name, value in found.items()
        if name in wanted and value.shape != wanted[name].shape
    ]
    problems = [("missing", missing), ("unexpected", unexpected), ("of another shape", shapes)]
    lines = [f"{len(names)} {kind}: {_list_first(names)}" for kind, names in problems if names]
    if lines:
        raise ValueError(
            f"{path} does not hold the weights of {type(module).__name__}: {'; '.join(lines)}"
        )
    module.load_state_dict(found, strict=False)


def check_sha256(path: str | Path, expected: str) -> None:
    """Raise unless the file at ``path`` has this checksum."""
    with open_file(path, TENSOR_BYTES) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ValueError(
            f"{path} is not the expected file: its sha256 is {found}, not {expected}; "
            "install its package again"
        )


def check_weights(network: str, weights: str | Path | None, versions: Iterable[str]) -> None:
    """Raise if these are neither weights that were published for a network nor the path of a file.

    Args:
        network: its name, for the message.
        versions: the names of its published weights.
    """
    if weights is not None and not Path(weights).suffix and not Path(weights).exists():
        choose(f"weights of {network}", str(weights), ("imagenet", *versions))


def weights_file(network: str, weights: str | Path, versions: Mapping[str, str]) -> Path:
    """Return the file of these weights; those of torchvision are fetched if they are not there.

    Args:
        network, weights: as in ``check_weights``.
        versions: file names of torchvision's weights.
    """
    check_weights(network, weights, versions)
    version = FIRST if weights == "imagenet" else str(weights)
    if version not in versions:
        return Path(weights)
    name = versions[version]
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        digits = name.removesuffix(".pth").rpartition("-")[2]
        with explain_fetch_errors(network, folder):
            # Written aside, compared with the digits of its hash, and moved.
            torch.hub.download_url_to_file(ADDRESS + name, str(folder / name), digits, False)
    return folder / name


@contextmanager
def explain_fetch_errors(name: str, cache: Path | str) -> Iterator[None]:
    """Say what to do if the weights of a network cannot be fetched inside.

    Args:
        cache: the folder of weights that were fetched.
    """
    try:
        yield
    except OSError as error:
        raise ConnectionError(
            f"the weights of {name} could not be fetched ({error}); build it once on a machine "
            f"with internet access and copy {cache} from there, or give a weight file "
            "(weights=…, --weights of 'shoal train')"
        ) from error


def _list_first(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _read(path: Path) -> Mapping[str, Tensor]:
    if path.is_dir() or not path.exists():
        raise FileNotFoundError(f"no weight file at {path}")
    open_file(path, TENSOR_BYTES).close()  # the libraries would open anything
    read = _read_safetensors if path.suffix == ".safetensors" else _read_torch
    try:
        found = read(path)
    except ImportError:
        raise
    except Exception as error:  # a damaged file can raise anything
        # torch's own message would advise to run any code in the file.
        raise ValueError(
            f"{path} cannot be read as a file of tensors ({type(error).__name__}): it is damaged "
            "or was not written by torch.save(model.state_dict(), path)"
        ) from error
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f"{path} holds no state dict but {type(found).__name__}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"{path} holds no state dict: {name!r} is {type(value).__name__}, not a tensor; "
                "save model.state_dict() alone"
            )
    return found


def _read_torch(path: Path) -> object:
    with open_file(path, TENSOR_BYTES) as file:
        return torch.load(file, map_location="cpu", weights_only=True)


def _read_safetensors(path: Path) -> object:
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise ImportError(f"{path} needs safetensors: pip install safetensors") from error
    return load_file(path)
