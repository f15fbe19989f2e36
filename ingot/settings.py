"""The environment, read here and nowhere else. Nothing in it changes an output.

rich, which draws the progress, looks for NO_COLOR and TERM by itself. What a user types in a
conversation is remembered in $XDG_STATE_HOME/ingot.

INGOT_API_KEY      the key with which `ingot chat` and `ingot models` ask a server
INGOT_CACHE        folder of compiled model directories (default: $XDG_CACHE_HOME/ingot)
INGOT_CACHE_LIMIT  most bytes there after a compile, such as 20GB (default: no limit)
INGOT_CXX          C++ compiler to use (default: $CXX, then the system's)
INGOT_DEBUG        verbosity: 0 quiet, 1 totals, 2 per pass and plan, 3 kernels, 4 sources, 5 graphs
INGOT_SERVE_...    the options of `ingot serve`: INGOT_SERVE_PORT is --port

The hub's client reads HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and others by itself.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ingot.errors import UsageError

PREFIX = "INGOT_"
VARIABLES = ("INGOT_API_KEY", "INGOT_CACHE", "INGOT_CACHE_LIMIT", "INGOT_CXX", "INGOT_DEBUG")
SERVE_PREFIX = "INGOT_SERVE_"
_COMPILER_PATHS = "CPATH CPLUS_INCLUDE_PATH LIBRARY_PATH COMPILER_PATH GCC_EXEC_PREFIX".split()
_BYTES = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE | re.ASCII)
LIKENESS = 0.7  # of a name that may be meant for one of them, without the prefix: 1 is equal


class UnknownVariableWarning(UserWarning):
    """The environment has variables of our prefix that are none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment asks for."""

    cache_limit: int | None
    cxx: str | None
    debug: int
    environ: Mapping[str, str] = field(repr=False)

    @property
    def cache_dir(self) -> Path:
        """The folder of compiled models. Raises UsageError for a user without a home."""
        try:
            if self.environ.get("INGOT_CACHE"):
                return Path(self.environ["INGOT_CACHE"]).expanduser()
            return self._user_dir("XDG_CACHE_HOME", ".cache")
        except RuntimeError as error:  # a user without a home
            raise UsageError(
                f"no folder for the cache: {error}", hint="Set INGOT_CACHE to a folder."
            ) from error

    @property
    def otel_opt_in(self) -> tuple[str, ...]:
        """Which names of OpenTelemetry that may still change are wanted."""
        opted = self.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "")
        return tuple(name.strip() for name in opted.split(","))

    @property
    def kernels_dir(self) -> Path:
        """The folder of kernels that were built before. Raises as `cache_dir` does."""
        return self.cache_dir / "kernels"

    @property
    def compiler_paths(self) -> tuple[str, ...]:
        """Where the C++ compiler looks for headers, libraries and its own parts by itself."""
        return tuple(f"{name}={self.environ.get(name, '')}" for name in _COMPILER_PATHS)

    @property
    def api_key(self) -> str | None:
        """The key for servers, if one is set."""
        return self.environ.get("INGOT_API_KEY") or None

    @property
    def state_dir(self) -> Path | None:
        """The folder of what a user has typed; None for a user without a home."""
        try:
            return self._user_dir("XDG_STATE_HOME", ".local/state")
        except RuntimeError:
            return None

    @property
    def escapes(self) -> bool:
        """Whether a terminal may get escape sequences, such as colours."""
        return not self.environ.get("NO_COLOR") and self.environ.get("TERM", "") not in ("", "dumb")

    def _user_dir(self, variable: str, below_home: str) -> Path:
        # The XDG rule: a relative path is invalid and ignored.
        base = self.environ.get(variable, "")
        return (Path(base) if base.startswith("/") else Path.home() / below_home) / "ingot"


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads the environment, and warns of INGOT_* variables that are unknown.

    Raises UsageError for one that has a wrong value.
    """
    env = os.environ if environ is None else environ
    unknown = unknown_variables(env)
    if unknown:
        warnings.warn(unknown, UnknownVariableWarning, stacklevel=2)
    debug = env.get("INGOT_DEBUG", "0") or "0"
    if debug not in tuple("012345"):
        raise UsageError(f"INGOT_DEBUG is {debug!r}", hint="Supported: 0 to 5.")
    limit = env.get("INGOT_CACHE_LIMIT", "")
    try:
        cache_limit = parse_bytes(limit) if limit else None
    except ValueError as error:
        raise UsageError(f"INGOT_CACHE_LIMIT is {limit!r}", hint=f"{error}") from None
    return Settings(
        cache_limit=cache_limit,
        cxx=env.get("INGOT_CXX") or env.get("CXX") or None,
        debug=int(debug),
        environ=env,
    )


def serve_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The options of `ingot serve` that the environment sets, by the names of their variables."""
    env = os.environ if environ is None else environ
    return {name: text for name, text in env.items() if name.startswith(SERVE_PREFIX)}


def parse_bytes(text: str) -> int:
    """A size such as `500MB`, `20GB` or `20G`, in powers of 1000 as sizes are printed.

    Raises ValueError for anything else.
    """
    found = _BYTES.fullmatch(text.strip())
    if not found:
        raise ValueError("Write a size such as 500MB, 20GB or 1.5TB.")
    number, unit = found.groups()
    return int(float(number) * 1000 ** " KMGT".index(unit.upper() or " "))


def unknown_variables(environ: Mapping[str, str] | None = None) -> str:
    """A sentence about INGOT_* variables that are unknown; empty if there are none.

    They are no error: Kubernetes sets INGOT_PORT and others in every pod beside a service that is
    called ingot.
    """
    env = os.environ if environ is None else environ
    ours = (name for name in env if name.startswith(PREFIX) and name not in VARIABLES)
    unknown = sorted(name for name in ours if not name.startswith(SERVE_PREFIX))
    if not unknown:
        return ""
    return (
        f"unknown environment variables, which have no effect: {', '.join(map(_named, unknown))}; "
        f"known: {', '.join(VARIABLES)}"
    )


def _named(name: str) -> str:
    """The name, with the known one that it is nearly like."""
    known = [variable.removeprefix(PREFIX) for variable in VARIABLES]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1, cutoff=LIKENESS)
    return f"{name} (did you mean {PREFIX}{near[0]}?)" if near else name
