"""The command line as `python -m hubless.cli`."""

from __future__ import annotations

import sys

from hubless.cli import main

if __name__ == "__main__":
    sys.exit(main())
