"""The embedded MNIST, written from the four original gzipped idx files.

Run once; the result is kept in the repository. Needs a folder with ``train-images-idx3-ubyte.gz``
and its three siblings:

    python tools/embed_mnist.py FOLDER

The result is read back by the package, which checks it against the MD5 sums of the originals.
"""

import gzip
import lzma
import sys
from pathlib import Path

import numpy as np

from shoal.datasets.mnist import FOLDER, TEST, TRAIN, IdxFiles, test_digits, train_digits

IMAGES_HEADER_BYTES = 16
FILTERS = [
    {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "dict_size": 1 << 23,
        "lc": 0,
        "lp": 0,
        "pb": 0,
    }
]


def xz(content: bytes) -> bytes:
    return lzma.compress(content, check=lzma.CHECK_CRC32, filters=FILTERS)


def embed(source: IdxFiles, originals: Path) -> int:
    """Write the three files of one half of MNIST; return their size in bytes."""
    images = gzip.decompress((originals / f"{source.name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((originals / f"{source.name}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=IMAGES_HEADER_BYTES)
    ink = pixels > 0
    packed = {
        source.ink: xz(np.packbits(ink).tobytes()),
        # No time stamp, so that the same input gives the same bytes.
        source.grey: gzip.compress(pixels[ink].tobytes(), 9, mtime=0),
        source.labels: xz(labels),
    }
    for path, content in packed.items():
        path.write_bytes(content)
        print(f"{path.name}: {len(content):,} bytes")
    return sum(len(content) for content in packed.values())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    FOLDER.mkdir(exist_ok=True)
    total = sum(embed(source, Path(sys.argv[1])) for source in (TRAIN, TEST))
    print(
        f"total: {total:,} bytes, {len(train_digits().labels) + len(test_digits().labels)} digits"
    )
