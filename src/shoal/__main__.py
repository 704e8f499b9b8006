"""``python -m shoal``: the same as ``shoal``."""

import sys

from .cli import main

sys.exit(main())
