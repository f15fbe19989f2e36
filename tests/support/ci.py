"""What CI runs."""

from __future__ import annotations

import re
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / ".ci" / "run"


def targets_in_ci() -> list[str]:
    """The targets of make that `.ci/run` names, in its order."""
    words = " ".join(re.findall(r"^make (.+)", RUN.read_text(), re.M)).split()
    return [word for word in words if re.fullmatch(r"[a-z][a-z-]+", word)]
