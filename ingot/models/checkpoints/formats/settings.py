"""Reads the `quantization_config` of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.errors import ConfigError
from ingot.models.file_names import CONFIG

# Keys of config.json that hold it.
SETTINGS = ("quantization_config", "compression_config")
_MISSING = object()
HINT = "the quantization_config must be as the program that quantized the model has written it"


@dataclass(frozen=True, slots=True)
class QuantizationKeys:
    """Keys of a `quantization_config`, checked as they are read; `where` is its place in a file."""

    values: Mapping[str, Any]
    where: str = "quantization_config"

    def get(self, key: str, default: Any = None) -> Any:
        """A value as it is; null counts as missing."""
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: Any = _MISSING) -> int:
        """A whole number; one in a string is none."""
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, "a whole number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def choice(self, key: str, allowed: Sequence[Any], default: Any = _MISSING) -> Any:
        """One of those values."""
        value = self.get(key, default)
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            raise self.wrong(key, " or ".join(map(str, allowed)))
        return value

    def inner(self, key: str) -> QuantizationKeys:
        """An object of its own."""
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return QuantizationKeys(value, f"{self.where}.{key}")

    def wrong(self, key: str, wanted: str) -> ConfigError:
        """The error of a value that is not what it must be."""
        if self.values.get(key) is None:
            return ConfigError(f"{self.where} has no {key}", hint=HINT)
        return ConfigError(
            f"{self.where} has {key} {self.values[key]!r:.80}", hint=f"supported: {wanted}"
        )


def settings_of(config: Mapping[str, Any]) -> QuantizationKeys | None:
    """The quantization of a config.json, wherever programs put it; None for no quantization."""
    inner = config.get("text_config")
    for values in (config, inner if isinstance(inner, Mapping) else {}):
        for key in SETTINGS:
            found = values.get(key)
            if isinstance(found, Mapping):
                return QuantizationKeys(found, key)
            if found is not None:
                raise QuantizationKeys(values, CONFIG).wrong(key, "an object")
    return None
