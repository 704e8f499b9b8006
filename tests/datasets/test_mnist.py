"""The embedded MNIST: the original bytes, small, quick, and loud when damaged."""

import ast
import gzip
import hashlib
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.datasets import mnist

HALVES = [
    pytest.param(mnist.train_digits, mnist.TRAIN, 60_000, id="train"),
    pytest.param(mnist.test_digits, mnist.TEST, 10_000, id="test"),
]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the embedded files, to be damaged."""
    folder = tmp_path / "embedded"
    shutil.copytree(mnist.FOLDER, folder)
    monkeypatch.setattr(mnist, "FOLDER", folder)
    mnist.test_digits.cache_clear()
    yield folder
    mnist.test_digits.cache_clear()


@pytest.mark.parametrize(("load", "source", "count"), HALVES)
def test_digits_are_the_original_bytes(load, source, count) -> None:
    digits = load()
    images = struct.pack(">4I", 2051, count, 28, 28) + digits.images.tobytes()
    labels = struct.pack(">2I", 2049, count) + digits.labels.astype(np.uint8).tobytes()
    assert hashlib.md5(images).hexdigest() == source.images_md5
    assert hashlib.md5(labels).hexdigest() == source.labels_md5


def test_sums_are_the_published_ones() -> None:
    assert mnist.TRAIN.images_md5 == "6bbc9ace898e44ae57da46a324031adb"
    assert mnist.TRAIN.labels_md5 == "a25bea736e30d166cdddb491f175f624"
    assert mnist.TEST.images_md5 == "2646ac647ad5339dbf082846283269ea"
    assert mnist.TEST.labels_md5 == "27ae3e4e09519cfbb04c329615203637"


@pytest.mark.parametrize(("load", "source", "count"), HALVES)
def test_shapes_types_and_sharing(load, source, count) -> None:
    digits = load()
    assert digits.images.shape == (count, 28, 28)
    assert digits.images.dtype == np.uint8
    assert digits.labels.shape == (count,)
    assert digits.labels.dtype == np.int64
    assert load() is digits
    for array in digits:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_counts_per_digit() -> None:
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    test = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(mnist.train_digits().labels).tolist() == train
    assert np.bincount(mnist.test_digits().labels).tolist() == test


@pytest.mark.parametrize(("load", "source", "count"), HALVES)
def test_digits_equal_the_gzipped_originals(load, source, count, data_root: Path) -> None:
    folder = data_root / "mnist"
    if not folder.is_dir():
        pytest.skip(f"data not present: {folder}")
    digits = load()
    images = gzip.decompress((folder / f"{source.name}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{source.name}-labels-idx1-ubyte.gz").read_bytes())
    assert digits.images.tobytes() == images[16:]
    assert digits.labels.tolist() == list(labels[8:])


def test_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in mnist.FOLDER.iterdir()) <= 11_000_000


def test_nothing_is_unpickled() -> None:
    """Neither by name nor through numpy's own file format."""
    assert {path.suffix for path in mnist.FOLDER.iterdir()} == {".xz", ".gz"}
    tree = ast.parse(Path(mnist.__file__).read_text(encoding="utf-8"))
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    assert not words & {"pickle", "marshal", "shelve", "load", "loads", "eval", "exec"}


def test_all_digits_load_within_a_second() -> None:
    """In processor time, which a busy machine changes little."""
    code = (
        "import time; from shoal.datasets import mnist; start = time.process_time();"
        "n = len(mnist.train_digits().labels) + len(mnist.test_digits().labels);"
        "print(n, time.process_time() - start)"
    )
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        count, time = done.stdout.split()
        assert int(count) == 70_000
        seconds.append(float(time))
        if seconds[-1] < 1.0:
            break
    assert min(seconds) < 1.0, seconds


DAMAGE = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "flipped": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "replaced": lambda content: b"something else",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["t10k-images.ink.xz", "t10k-images.grey.gz"])
def test_damaged_images_name_file_and_remedy(copy: Path, name: str, damage: str) -> None:
    path = copy / name
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.raises(RuntimeError) as caught:
        mnist.test_digits()
    message = str(caught.value)
    assert str(path) in message
    assert mnist.TEST.images_md5 in message
    assert "pip install --force-reinstall" in message


def test_missing_file_names_file_and_remedy(copy: Path) -> None:
    (copy / "t10k-labels.xz").unlink()
    with pytest.raises(RuntimeError, match=r"t10k-labels\.xz .* No such file .* reinstall"):
        mnist.test_digits()


@pytest.mark.parametrize("kind", ["images.ink.xz", "images.grey.gz", "labels.xz"])
def test_whole_file_with_other_content_gives_both_sums(copy: Path, kind: str) -> None:
    """A file that unpacks well can still be the wrong one: here, the training half's."""
    shutil.copy(copy / f"train-{kind}", copy / f"t10k-{kind}")
    with pytest.raises(RuntimeError) as caught:
        mnist.test_digits()
    message = str(caught.value)
    assert f"t10k-{kind}" in message
    expected = mnist.TEST.labels_md5 if kind == "labels.xz" else mnist.TEST.images_md5
    assert f"MD5 sum {expected}, found " in message
    found = message.split("found ")[1][:32]
    assert len(bytes.fromhex(found)) == 16 and found != expected
