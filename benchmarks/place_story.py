"""The story of the guide to new places: what was expected, what came, and what adapting did.

    shoal fit photos --time 4min
    python -m benchmarks.place_story --model out/photos-fit --data sketches

The folders of the images have the names of their classes.
"""

from pathlib import Path

import shoal

from .recording import options, write


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--model", type=Path, required=True, help="the folder of a fit")
    parser.add_argument("--data", type=Path, required=True, help="a folder of images by class")
    asked = parser.parse_args()
    model = shoal.load(asked.model)
    images = sorted(asked.data.rglob("*.*"))
    labels = [path.parent.name for path in images]
    report = model.monitor(images, labels)
    adapted = model.predict(images, adapt=True)
    right = [one.label == label for one, label in zip(adapted, labels, strict=True)]
    drift = report.drift
    numbers = {
        "images": report.inputs,
        "expected": report.expected,
        "interval": report.interval,
        "measured": report.measured,
        "left_out": dict(report.known_accuracies),
        "error_of_estimates": report.error,
        "alarm": None if drift is None else drift.alarm,
        "nearest": None if drift is None else drift.nearest,
        "auroc": None if drift is None else drift.auroc,
        "unsure": report.unsure,
        "adaptation": model.adaptation.offered,
        "adapted": sum(right) / len(right),
        "seen_domains": model.card["estimate"]["methods"][model.card["estimate"]["deploy"]].get(
            "inside"
        ),
    }
    print(numbers)
    print(write("place_story", asked, numbers))


if __name__ == "__main__":
    main()
