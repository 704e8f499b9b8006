"""Losses of power at random moments: each work is repeated from what was synced, and compared.

What a work does to its folder is recorded once. After a loss of power only synced bytes are sure,
and entries of synced folders. ``ordered``: the file system keeps the order of all other changes, as
those with a journal do; ``unordered``: any of them may be missing, as POSIX allows.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.chaos.losses import survey

from .recording import options, write

WORKS = ("run", "fit table", "fit heads", "soup", "monitor")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--losses", type=int, default=40, help="of each work and kind of system")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    for name in WORKS:
        with TemporaryDirectory() as scratch:
            for kind in ("ordered", "unordered"):
                seen = survey(name, Path(scratch), asked.losses, asked.seed, kind == "ordered")
                numbers = {"resumed": seen.resumed, "said": dict(seen.said)}
                found.setdefault(name, {})[kind] = {**numbers, "broken": len(seen.broken)}
                print(name, kind, found[name][kind], *seen.broken[:2], sep="\n", flush=True)
    print(write("power_loss", asked, {"seed": asked.seed, "by_work": found}))


if __name__ == "__main__":
    main()
