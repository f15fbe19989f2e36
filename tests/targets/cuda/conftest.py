"""Kernels run in Triton's interpreter here: no test of this folder needs a card."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel file is imported
