"""Strict reading of a JSON object: every key is read, known noise, or an error."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ingot.errors import ConfigError, IngotError, Noting, OnFault, raise_fault
from ingot.models.noise import NOISE

MAX_SIZE = 2**24  # with it, no product of sizes of a model overflows 64 bits
MAX_TOKEN_ID = 2**31 - 1
_MISSING: Any = object()
# What stands in for wrong values, where faults are noted. A size is such that others still fit it.
_STAND_IN = 64
_NO_NUMBERS: tuple[float, ...] = ()
_NO_IDS: tuple[int, ...] = ()

Options = ParamSpec("Options")
Value = TypeVar("Value")
Reader = Callable[Concatenate["Fields", str, Options], Value]


def _or_else(
    stand_in: Value,
) -> Callable[[Reader[Options, Value]], Reader[Options, Value]]:
    """Makes a reader go on with a stand-in where the fault of a key is noted and not raised."""

    def decorate(reader: Reader[Options, Value]) -> Reader[Options, Value]:
        @wraps(reader)
        def read(
            self: Fields, key: str, /, *args: Options.args, **options: Options.kwargs
        ) -> Value:
            try:
                return reader(self, key, *args, **options)
            except ConfigError as error:
                if key not in self._wrong:
                    self.fault(error, key)
                return stand_in

        return read

    return decorate


class Fields:
    """A JSON object that remembers which of its keys were read.

    Args:
        values: the parsed object.
        where: what messages call it, such as "config.json".
        on_fault: gets the ConfigError of every reader for a wrong type, a value out of range, or,
            unless a default is given, a missing key. `null` counts as missing. If it returns, the
            reader gives a stand-in; then what is read tells of keys, and makes no model.
        ignored: gets each key that is there and changes nothing, where that may be a surprise.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str = "config.json",
        on_fault: OnFault = raise_fault,
        ignored: list[str] | None = None,
    ) -> None:
        self._values = values
        self.ignored = [] if ignored is None else ignored
        self._on_fault = on_fault
        self._wrong: set[str] = set()
        self._absent: set[str] = set()
        self._read: set[str] = set()
        self._spellings: dict[str, str] = {}
        self._defaults: dict[str, Any] = {}
        self.where = where

    def spell(self, **spellings: str) -> None:
        """From now on, the key on the left stands in the object as the one on the right."""
        self._spellings |= spellings

    def assume(self, **defaults: Any) -> None:
        """From now on, these values stand for keys that are missing, whatever the reader gives."""
        self._defaults |= defaults

    def __contains__(self, key: str) -> bool:
        return self._value(key) is not None

    def _value(self, key: str) -> Any:
        value = self._values.get(self._spellings.get(key, key))
        return self._defaults.get(key) if value is None else value

    def is_null(self, key: str) -> bool:
        """Returns whether the key is there with the value null; counts as reading it."""
        key = self._spellings.get(key, key)
        self._read.add(key)
        return key in self._values and self._values[key] is None

    def raw(self, key: str, default: Any = _MISSING) -> Any:
        """The value as parsed; a missing key gives the default."""
        value = self._value(key)
        key = self._spellings.get(key, key)
        self._read.add(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise ConfigError(
                f"{self.where} has no {key}",
                hint=f"add {key}; keys present: {', '.join(sorted(self._values)[:40])}",
            )
        if default and default != 1:
            self._absent.add(key)
        return default

    @_or_else(_STAND_IN)
    def integer(
        self, key: str, default: int = _MISSING, *, minimum: int = 1, maximum: int = MAX_SIZE
    ) -> int:
        """An integer within bounds."""
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "an integer")
        if not minimum <= value <= maximum:
            raise self.wrong(key, value, f"an integer from {minimum} to {maximum}")
        return value

    @_or_else(1.0)
    def number(self, key: str, default: float = _MISSING, *, minimum: float = 0.0) -> float:
        """A finite number of at least minimum."""
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, value, "a number")
        if not minimum <= value <= 1e30 or not math.isfinite(value):
            raise self.wrong(key, value, f"a finite number of at least {minimum:g}")
        return float(value)

    @_or_else(1.0)
    def positive(self, key: str, default: float = _MISSING) -> float:
        """A finite number above zero."""
        value = self.number(key, default)
        if value <= 0.0:
            raise self.wrong(key, value, "a number above 0")
        return value

    @_or_else(False)
    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """true or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    @_or_else("")
    def choice(self, key: str, choices: Mapping[str, str], default: str = _MISSING) -> str:
        """One of the spellings, as its canonical name."""
        value = self.raw(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(key, value, f"one of {', '.join(sorted(choices))}")
        return choices[value]

    @_or_else(_NO_NUMBERS)
    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers above zero."""
        value = self.raw(key)
        if not isinstance(value, list):
            raise self.wrong(key, value, "a list of numbers")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, (int, float)):
                raise self.wrong(key, item, "a list of numbers")
            if not 0.0 < item <= 1e30:
                raise self.wrong(key, item, "a list of finite numbers above 0")
        return tuple(float(item) for item in value)

    @_or_else(_NO_IDS)
    def token_ids(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them, or nothing, which null says too."""
        value = [] if self.is_null(key) else self.raw(key, [])
        ids = value if isinstance(value, list) else [value]
        for item in ids:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= MAX_TOKEN_ID:
                raise self.wrong(key, item, "a token id or a list of token ids")
        return tuple(dict.fromkeys(ids))

    def nested(self, key: str) -> Fields:
        """A nested object; a missing key gives an empty one."""
        value = self.raw(key, {})
        if not isinstance(value, dict):
            if key not in self._wrong:
                self.fault(self.wrong(key, value, "an object"), key)
            value = {}
        where = f"{self.where}: {key}"
        return Fields(value, where, lambda error: self.fault(error, key), self.ignored)

    def ignore(self, *keys: str) -> None:
        """Reads keys that change nothing here, unless they were read before."""
        for key in keys:
            if key not in self._read and self.raw(key, None) is not None:
                self.ignored.append(f"{self.where}: {key} = {self._values[key]!r:.40}")

    def refuse(self, key: str, allowed: Sequence[Any], why: str) -> None:
        """Reads a key that may only have values which change nothing."""
        value = self.raw(key, None)
        if value is not None and value not in allowed:
            found = self.wrong(key, value, "").found
            self.fault(ConfigError(found, hint=why))

    def fault(self, error: IngotError, *wrong: str) -> None:
        """Raises an error, or notes it where faults are noted; these keys are wrong then."""
        self._on_fault(error)
        self._wrong.update(wrong)

    def sound(self, *keys: str) -> bool:
        """Returns whether no stand-in was given for any of these keys, or for any at all."""
        return not (self._wrong & set(keys) if keys else self._wrong)

    def noting(self) -> Noting:
        """A context: the error that ends it is noted, where faults are.

        After a stand-in nothing is noted: it may be what contradicts.
        """
        return Noting(lambda error: self.fault(error) if self.sound() else None)

    def names(self) -> tuple[str, ...]:
        """Every key of the object, those with a null value too."""
        return tuple(self._values)

    def wrong(self, key: str, value: Any, expected: str) -> ConfigError:
        """The error for a value that cannot be used."""
        key = self._spellings.get(key, key)
        text = repr(value)
        text = text if len(text) <= 80 else f"{text[:77]}..."
        return ConfigError(f"{self.where} has {key} = {text}", hint=f"{key} must be {expected}")

    def absent(self) -> tuple[str, ...]:
        """The keys that the object lacks, at any depth, and that were read with a default which
        does something: it is not empty, 0 or 1."""
        inner = (value for value in self._values.values() if isinstance(value, dict))
        return tuple(sorted(self._absent - {key for value in inner for key in value}))

    def unread(self, noise: frozenset[str] = NOISE) -> tuple[str, ...]:
        """The keys that nobody read and that are not known noise."""
        return tuple(sorted(set(self._values) - self._read - noise))

    def read_all(self) -> None:
        """From now on, all keys count as read."""
        self._read |= set(self._values)

    def unknown(self, noise: frozenset[str] = NOISE) -> ConfigError | None:
        """The error that names the keys that were neither read nor known noise, if there are, and
        that say anything: null does not."""
        unknown = [key for key in self.unread(noise) if self._values[key] is not None]
        if not unknown:
            return None
        near = difflib.get_close_matches(unknown[0], sorted(self._read), n=1, cutoff=0.0)
        return ConfigError(
            f"{self.where} has the unknown key{'s' if len(unknown) > 1 else ''} "
            f"{', '.join(unknown)}",
            hint=f"nearest known key to {unknown[0]}: {near[0] if near else 'none'}; a key that "
            "changes nothing can be removed, one that matters is not supported here",
        )

    def finish(self, noise: frozenset[str] = NOISE) -> None:
        """Raises, or notes, what `unknown` gives."""
        if error := self.unknown(noise):
            self.fault(error)
