"""`python -m ingot` is the `ingot` command."""

from __future__ import annotations

import sys

from ingot.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
