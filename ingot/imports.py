"""Modules that are imported when they are first used."""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType


def imported(name: str) -> ModuleType:
    """The module of that name.

    Python does not look for garbage meanwhile: it would find none, and look at every class anew.
    """
    looks = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if looks:
            gc.enable()
