"""``shoal diagnose`` of a PACS model, EfficientNet-Lite0, head statistics: seconds of the command.

On all of PACS, or with ``--images N`` on N images, equally many of each domain. The model has
ImageNet's weights and a random head; the time does not depend on them. The images are decoded into
the cache first, which is timed separately. The command itself loads the model, opens the cache,
runs the network, computes the statistics, and writes JSON and figures.
"""

import os
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from shoal.algorithms import find
from shoal.algorithms.hparams import defaults
from shoal.cli import main as shoal
from shoal.datasets import DATASETS, DomainDataset, image_folders
from shoal.datasets.cache import build, cache_folder
from shoal.randomness import stream
from shoal.results.records import Record
from shoal.runs import model
from shoal.runs.run import Protocol, Run

from .recording import options, write

SHAPE = (3, 224, 224)


def some(data: DomainDataset, folder: Path, images: int) -> DomainDataset:
    """Return a folder of links to ``images`` of the data set's files."""
    for domain in data.domains:
        order = torch.randperm(len(domain), generator=stream("benchmarks", domain.name))
        for index in order[: images // len(data.domains)].tolist():
            path = Path(domain.images[index])  # type: ignore[arg-type]
            link = folder / domain.name / path.parent.name / path.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
    return image_folders(folder.name, folder)


def save(folder: Path, data: DomainDataset, device: torch.device) -> None:
    """Save a model as a run does."""
    kind = find("erm")
    hparams = asdict(defaults(kind.Hparams, "large"))
    protocol = Protocol(network="efficientnet-lite0", weights="imagenet")
    run = Run(
        dataset="pacs",
        fingerprint=data.fingerprint,
        algorithm="erm",
        test_domains=data.names[-1:],
        trial=0,
        draw=0,
        hparams=hparams,
        protocol=protocol,
    )
    algorithm = model.build(run, kind, SHAPE, len(data.classes), 3, "imagenet", device)
    record = Record(step=0, accuracy={})
    model.save(folder, algorithm, run, SHAPE, data.classes, data.names[:-1], record)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds PACS/")
    parser.add_argument("--images", type=int, help="total number of images (default: all of PACS)")
    parser.add_argument(
        "--cache", type=Path, help="folder of decoded images (default: a temporary one)"
    )
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = DATASETS["pacs"](asked.data, 0)
    load = os.getloadavg()[0]  # of other processes
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "run").mkdir()
        save(place / "run", data, device)
        if asked.images:
            data = some(data, place / "images", asked.images)
        cache = asked.cache or place / "cache"
        begin = time.perf_counter()
        build(data, cache_folder(data, cache))
        decoding = time.perf_counter() - begin
        command = ["diagnose", place / "run", place / "images" if asked.images else "pacs"]
        command += ["--data", asked.data, "--cache", cache]
        command += ["--json", place / "found.json", "--figures", place / "figures"]
        begin = time.perf_counter()
        with redirect_stdout(StringIO()) as output:
            status = shoal([str(word) for word in command])
        seconds = time.perf_counter() - begin
    if status:
        raise SystemExit(status)
    print(output.getvalue())
    numbers = {
        "images": sum(len(domain) for domain in data.domains),
        "decoding_s": round(decoding, 1),
        "diagnose_s": round(seconds, 1),
        "load_before": round(load, 1),
    }
    print(numbers, write(f"diagnose_{device.type}", asked, numbers), sep="\n")


if __name__ == "__main__":
    main()
