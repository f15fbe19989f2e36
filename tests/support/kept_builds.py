"""What tests build outlives their run: object files, GPU binaries and fronts, in `build/tests`.

They are kept there by the product, under keys of all that they depend on. What no key tells is that
a test has patched what builds them. So while it has, that kind of file is neither taken nor kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ingot.cache.builds import Builds

ROOT = Path(__file__).resolve().parents[2]
PLACE = "TESTS_KEEP_IN"  # another folder than that of this checkout
# Fronts are made by these rooms; what is built of their text is made by compilers alone.
FRONTS, BUILT = frozenset({".front"}), frozenset({".o", ".cubin"})
MAKE_FRONTS = ("artifact", "cache", "compiler", "models", "ops", "passes", "targets")
COMPILERS = ("compilers", "toolchain", "tools")
IN_THE_KEY = ("KERNELS",)  # the folder of headers, of which keys have the content
# What is given objects and fronts, and makes others of neither.
ONLY_USE = ("ingot.targets.cpu.toolchain.build", "ingot.compiler.compile.")

_take, _keep = Builds.take, Builds.keep
_setattr, _undo = pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.undo
_patched: dict[pytest.MonkeyPatch, set[str]] = {}  # suffixes that wait for the end of each


def kept_folder() -> Path:
    """What outlives the run lies there."""
    return Path(os.environ.get(PLACE) or ROOT / "build" / "tests")


def kernels_folder() -> Path:
    """The folder in it that is the product's own, made if need be."""
    folder = kept_folder() / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def guard_kept_builds() -> None:
    """From now on patches of this process reach no file that outlives it."""
    pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.undo = setattr_told, undo_told
    Builds.take, Builds.keep = take, keep  # type: ignore[method-assign]


def take(self: Builds, key: str, suffix: str) -> bytes | None:
    return None if _is_spoilt(self.folder, suffix) else _take(self, key, suffix)


def keep(self: Builds, key: str, data: bytes, suffix: str) -> None:
    if not _is_spoilt(self.folder, suffix):
        _keep(self, key, data, suffix)


def setattr_told(self: pytest.MonkeyPatch, target: Any, *rest: Any, **named: Any) -> None:
    name = target if isinstance(target, str) else f"{_module_of(target)}.{rest[0]}"
    _patched.setdefault(self, set()).update(spoilt_by(name))
    _setattr(self, target, *rest, **named)


def undo_told(self: pytest.MonkeyPatch) -> None:
    _undo(self)
    _patched.pop(self, None)


def spoilt_by(name: str) -> frozenset[str]:
    """The suffixes of what may come out otherwise while that attribute is another."""
    if name.startswith(ONLY_USE):
        return frozenset()
    package, _, rest = name.partition(".")
    *modules, attribute = rest.split(".")
    if package != "ingot" or not modules or modules[0] not in MAKE_FRONTS:
        return frozenset()
    if any(module in COMPILERS for module in modules):
        return frozenset() if attribute in IN_THE_KEY else BUILT
    return FRONTS


def _is_spoilt(folder: Path, suffix: str) -> bool:
    spoilt = any(suffix in suffixes for suffixes in _patched.values())
    return spoilt and folder.resolve() == kernels_folder()


def _module_of(target: Any) -> str:
    """The module that an object is, or that its class is of."""
    return str(getattr(target, "__module__", None) or getattr(target, "__name__", ""))
