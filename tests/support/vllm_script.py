"""vLLM's basic offline examples, in our words, and what a user changes of them."""

from __future__ import annotations

import re
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "runtime" / "vllm_scripts"
IMPORT = re.compile(r"^from vllm[\w.]* import", re.M)


def ported(name: str) -> str:
    """The text of a script that imports ingot, and is otherwise the same."""
    text, count = IMPORT.subn("from ingot import", (SCRIPTS / f"{name}.py").read_text())
    assert count and "vllm" not in text
    return text
