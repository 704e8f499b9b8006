"""The page of a large sweep: the whole command, on 2,016 generated runs of 51 records."""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.report.made_up import make_sweep, write_run

from .recording import options, write


def main() -> None:
    asked = options(__doc__ or "").parse_args()
    methods = ["erm", "fishr", *(f"method-{k}" for k in range(12))]
    with TemporaryDirectory() as scratch:
        root = Path(scratch)
        runs = make_sweep(methods, ["pacs"], trials=3, draws=12, records=51)
        for run in runs:
            write_run(root / "sweep", run)
        page = root / "page.html"
        command = [sys.executable, "-m", "shoal", "report", str(root / "sweep")]
        begin = time.perf_counter()
        subprocess.run([*command, "--format", "html", "--out", str(page)], check=True)
        seconds = round(time.perf_counter() - begin, 1)
        numbers = {"runs": len(runs), "seconds": seconds, "megabytes": page.stat().st_size / 1e6}
    print(numbers)
    print(write("report_page", asked, numbers))


if __name__ == "__main__":
    main()
