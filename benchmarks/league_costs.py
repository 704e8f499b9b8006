"""GPU seconds of every method of the league: a captured update alone on a GPU, one after the other.

EfficientNet-Lite0 and the league's augmentation, 3 × 32 random images of PACS' size. ERM is
measured before all others and after them, to show how much the clock varies. A run has 5,001
updates; averages and evaluations, which cost every method the same, are left out.
"""

from typing import Any

import torch

from .kernels import measure, random_images
from .recording import options, write

METHODS = ("erm", "fishr", "coral", "vrex", "mixup", "sd", "sagm", "miro")
UPDATES = 5001


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--precision", default="bf16")
    asked = parser.parse_args()
    device = torch.device("cuda")
    rows: list[dict[str, Any]] = []
    with random_images() as (dataset, cache):
        for name in ("erm", *(name for name in asked.methods if name != "erm"), "erm"):
            found = measure(dataset, cache, "efficientnet-lite0", asked.precision, device, name)
            first = rows[0]["update_ms"] if rows else found["update_ms"]
            seconds = round(UPDATES * found["update_ms"] / 1000, 1)
            rows.append(
                {
                    "method": name,
                    "seconds": seconds,
                    "times_erm": round(found["update_ms"] / first, 3),
                    **found,
                }
            )
            print(rows[-1], flush=True)
    numbers = {"network": "efficientnet-lite0", "precision": asked.precision, "images": 96}
    print(write("league_costs", asked, {**numbers, "rows": rows}))


if __name__ == "__main__":
    main()
