"""The references of the primitives: every op that a graph or a plan may name.

Importing this package declares all of them as `torch.ops.ingot.<name>`.
"""

from importlib import import_module

from ingot.artifact.traits import TRAITS
from ingot.ops.registry import OPS, KernelTolerance, Op

for _name in TRAITS:
    import_module(f"ingot.ops.{_name}")

__all__ = ["OPS", "KernelTolerance", "Op"]
