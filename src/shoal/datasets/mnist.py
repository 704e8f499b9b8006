"""MNIST (LeCun, Cortes and Burges): 70,000 digits, embedded, so that nothing is downloaded.

Four pixels in five are blank, so the images are stored as two files: ``.ink.xz`` holds one bit a
pixel (is it above zero?) and ``.grey.gz`` the values of those that are. This unpacks more than
twice as fast as the idx files under xz, for a few per cent more bytes: most of the bytes are grey
values, on which xz is slow and gains little. The original idx files are restored byte for byte, and
their MD5 sums are checked at every load.
"""

import gzip
import hashlib
import lzma
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..files import LIST_BYTES, UnfitFile, read_bytes
from ..randomness import stream

FOLDER = Path(__file__).parent / "embedded"
TERMS = "CC BY-SA 3.0"
SIDE = 28
# An idx file starts with its kind, then its shape, four bytes each.
IMAGES_MAGIC = 2051
LABELS_HEADER_BYTES = 8


class Digits(NamedTuple):
    """Images ``[n, 28, 28]``, 0 to 255, and their labels ``[n]``; both read-only."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class IdxFiles(NamedTuple):
    """One half of MNIST: the prefix of its file names, and the MD5 sums of the original files."""

    name: str
    images_md5: str
    labels_md5: str

    @property
    def ink(self) -> Path:
        return FOLDER / f"{self.name}-images.ink.xz"

    @property
    def grey(self) -> Path:
        return FOLDER / f"{self.name}-images.grey.gz"

    @property
    def labels(self) -> Path:
        return FOLDER / f"{self.name}-labels.xz"


TRAIN = IdxFiles("train", "6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624")
TEST = IdxFiles("t10k", "2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637")


@cache
def train_digits() -> Digits:
    """Return the 60,000 training digits, in the original order."""
    return Digits(_images(TRAIN), _labels(TRAIN))


@cache
def test_digits() -> Digits:
    """Return the 10,000 test digits, in the original order."""
    return Digits(_images(TEST), _labels(TEST))


# pytest must not collect it as a test in modules that import it.
test_digits.__test__ = False  # type: ignore[attr-defined]


def deal_digits(name: str, trial: int, num_domains: int) -> list[tuple[Tensor, Tensor]]:
    """Return all 70,000 digits in the trial's order, dealt like cards to the domains.

    Each domain gets images ``[n, 28, 28]`` and digits ``[n]``. ``name`` and ``trial`` seed the
    order.
    """
    halves = train_digits(), test_digits()
    images = torch.from_numpy(np.concatenate([half.images for half in halves]))
    digits = torch.from_numpy(np.concatenate([half.labels for half in halves]))
    order = torch.randperm(len(digits), generator=stream(name, "domainbed", trial))
    hands = [order[start::num_domains] for start in range(num_domains)]
    return [(images[hand], digits[hand]) for hand in hands]


def _images(source: IdxFiles) -> NDArray[np.uint8]:
    expected = source.images_md5
    bits = np.frombuffer(_unpack(source.ink, lzma.decompress, expected), np.uint8)
    values = np.frombuffer(_unpack(source.grey, gzip.decompress, expected), np.uint8)
    ink = np.unpackbits(bits).view(np.bool_)
    pixels = np.zeros(ink.size, np.uint8)
    count = ink.size // SIDE**2
    if np.count_nonzero(ink) == values.size:
        pixels[ink] = values
    header = struct.pack(">4I", IMAGES_MAGIC, count, SIDE, SIDE)
    _check(f"{source.ink} with {source.grey}", expected, header, pixels.data)
    pixels.setflags(write=False)
    return pixels.reshape(count, SIDE, SIDE)


def _labels(source: IdxFiles) -> NDArray[np.int64]:
    content = _unpack(source.labels, lzma.decompress, source.labels_md5)
    _check(str(source.labels), source.labels_md5, content)
    # Losses take class indices as int64.
    labels = np.frombuffer(content, np.uint8, offset=LABELS_HEADER_BYTES).astype(np.int64)
    labels.setflags(write=False)
    return labels


def _unpack(path: Path, decompress: Callable[[bytes], bytes], expected: str) -> bytes:
    try:
        return decompress(read_bytes(path, LIST_BYTES))
    except (OSError, EOFError, UnfitFile, lzma.LZMAError, zlib.error) as error:
        raise _damage(str(path), expected, f"a file that cannot be unpacked ({error})") from error


def _check(where: str, expected: str, *content: bytes | memoryview) -> None:
    # Not for security; without the flag a FIPS build of Python refuses.
    md5 = hashlib.md5(usedforsecurity=False)
    for part in content:
        md5.update(part)
    if md5.hexdigest() != expected:
        raise _damage(where, expected, md5.hexdigest())


def _damage(where: str, expected: str, found: str) -> RuntimeError:
    return RuntimeError(
        f"the embedded MNIST is damaged: {where} should unpack to the original with MD5 sum "
        f"{expected}, found {found}; reinstall: pip install --force-reinstall --no-deps shoal"
    )
