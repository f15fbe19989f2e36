"""The checks of GPUs run on the simulated device here, in Triton's interpreter."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel file is imported
