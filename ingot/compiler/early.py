"""Compilers begin before PyTorch is imported, with what every model of a target needs.

What they make lies in the cache of kernels, where the compile finds it. What goes wrong here is
told there: the compile tries its tools and builds all that it does not find.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ingot.artifact.target import Target
from ingot.cache.builds import Builds
from ingot.compiler.choose_targets import resolve_target
from ingot.compiler.preflight import check_tools, prepare
from ingot.errors import UsageError
from ingot.targets.compilers import Builder


@contextmanager
def compilers_begun(names: Sequence[str]) -> Iterator[None]:
    """Compiles for those targets, beside the caller, as far as there is a cache.

    Leaving it by an error ends the compilers.
    """
    with Builder() as compiler:
        for target in known_targets(names) if _has_cache() else ():
            compiler.submit(check_tools, [target])
            prepare([target], compiler)
        yield


def known_targets(names: Sequence[str]) -> Iterator[Target]:
    """The targets of those names. What is none is refused by the compile."""
    for name in names:
        with suppress(UsageError):
            yield resolve_target(name)


def _has_cache() -> bool:
    try:
        Builds.opened()
    except (OSError, UsageError):
        return False
    return True
