"""The metadata of a GGUF file, read by the names that llama.cpp gives to what a model has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ingot.errors import ConfigError
from ingot.models.checkpoints.mapped_file import TensorInfo

ARCHITECTURE = "general.architecture"
_MISSING: Any = object()


class Metadata:
    """Metadata of a GGUF file's model.

    Attributes:
        path: the file; architecture: llama.cpp's name of it, which begins the keys of a model.
        values: all pairs; tensors: the table of tensors.
    """

    def __init__(
        self, path: Path, values: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
    ) -> None:
        self.path, self.values, self.tensors = path, values, tensors
        self.architecture = self.text(ARCHITECTURE)

    def text(self, key: str, default: str = _MISSING) -> str:
        """A text. Raises ConfigError for another kind, and where there is neither it nor a
        default; so do all that follow."""
        return str(self._checked(key, (str,), "a text", default))

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """true or false."""
        return bool(self._checked(key, (bool,), "true or false", default))

    def texts(self, key: str) -> list[str]:
        """A list of texts."""
        return list(self._checked(key, (list,), "a list of texts", _MISSING))

    def numbers(self, key: str) -> list[Any]:
        """A list of numbers or flags."""
        found: list[Any] = self._checked(key, (np.ndarray,), "a list of numbers", _MISSING).tolist()
        return found

    def number(self, key: str) -> float | None:
        """A number; None where the file has none."""
        found: float | None = self._checked(key, (int, float), "a number", None)
        return found

    def of_model(self, key: str, default: Any = _MISSING) -> Any:
        """A number of the model, by its key without the architecture; of one per layer, all of
        which have to be equal, that."""
        key = f"{self.architecture}.{key}"
        found = self._checked(key, (int, float, np.ndarray), "a number", default)
        if not isinstance(found, np.ndarray):
            return found
        if not len(found) or (found != found[0]).any():
            raise ConfigError(
                f"{self.path} has another {key} in some layers: {found.tolist()!r:.60}",
                hint="supported: models whose layers are of one size",
            )
        return found[0].item()

    @property
    def head_size(self) -> int:
        """Numbers of a query or key of one head."""
        heads = max(int(self.of_model("attention.head_count")), 1)
        size = self.of_model("attention.key_length", self.of_model("embedding_length") // heads)
        return max(int(size), 1)

    def per_layer(self, key: str) -> Any:
        """A number of the model, or a list of them; None where it has neither."""
        found = self.values.get(f"{self.architecture}.{key}")
        return found.tolist() if isinstance(found, np.ndarray) else found

    def token_id(self, name: str) -> int | None:
        """The special token of that name, such as eos; None where the file names none."""
        found = self.values.get(f"tokenizer.ggml.{name}_token_id")
        # Some converters write -1, or its bits, for none.
        return found if isinstance(found, int) and 0 <= found < 2**31 else None

    def has(self, *names: str) -> bool:
        """Returns whether the file has any of these tensors."""
        return not self.tensors.keys().isdisjoint(names)

    def _checked(self, key: str, kinds: tuple[type, ...], wanted: str, default: Any) -> Any:
        value = self.values.get(key, default)
        if value is _MISSING:
            raise ConfigError(
                f"{self.path} has no {key}",
                hint="every GGUF file of a language model has it: fetch the file again, or take "
                "another one of the model",
            )
        is_bool_for_number = isinstance(value, bool) and bool not in kinds
        if value is not default and (not isinstance(value, kinds) or is_bool_for_number):
            raise ConfigError(f"{self.path} has {key} = {value!r:.60}", hint=f"it must be {wanted}")
        return value
