"""The packages of the extra `onnx`."""

from __future__ import annotations

from importlib.util import find_spec

from ingot.errors import UsageError
from ingot.version import DISTRIBUTION

PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")


def check_packages() -> None:
    """Raises UsageError where one of them is not installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"Exporting to ONNX needs them: pip install '{DISTRIBUTION}[onnx]'",
        )
