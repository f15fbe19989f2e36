"""Cards of the served models, as clients see them."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class ModelCard(Struct, frozen=True, kw_only=True):
    """A model, under OpenAI's names and vLLM's. An alias has the model's own name as its root.

    `capabilities` say what it can be asked for, once it was loaded: "completion", "embed",
    "token_embed", "classify" or "token_classify".
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ingot"
    root: str
    parent: str | None = None
    max_model_len: int | None = None
    capabilities: list[str] | UnsetType = UNSET


class ModelList(Struct, frozen=True, kw_only=True):
    """The answer to `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
