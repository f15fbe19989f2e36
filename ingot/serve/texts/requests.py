"""Requests about whole texts: OpenAI's fields, and those of vLLM, Cohere and TEI.

A field that is null is one that was left out. Fields that are not listed are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ingot.serve.openai.fields import Name, Priority, TokenId, TokenIds

MAX_INPUTS = 2048  # of a request, as at OpenAI
MAX_PAIRS = 2048  # of a query and a document
Kept = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Document = str | dict[str, Any]
Inputs = (
    str
    | Annotated[
        list[str | TokenId | TokenIds],
        Meta(min_length=1, description=f"texts or token lists, at most {MAX_INPUTS}; tokens"),
    ]
)


class TextRequest(Struct, kw_only=True):
    """Fields of all of them.

    `truncate_prompt_tokens` cuts texts to so many tokens; -1: to as many as the model takes.
    """

    model: Name | None = None
    priority: Priority | None = None
    truncate_prompt_tokens: Kept | None = None
    truncate: bool | None = None

    @property
    def most_tokens(self) -> int | None:
        """The tokens that longer texts are cut to; -1: those that the model takes; None: none is
        cut."""
        return -1 if self.truncate else self.truncate_prompt_tokens


class EmbeddingRequest(TextRequest, kw_only=True):
    """`POST /v1/embeddings`: a vector for each input."""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Any = None
    prompt_name: Name | None = None
    normalize: bool | None = None


class TeiEmbedRequest(TextRequest, kw_only=True):
    """`POST /embed` of TEI."""

    inputs: str | list[str]
    normalize: bool | None = None
    prompt_name: Name | None = None
    dimensions: Any = None


class TeiEmbedAllRequest(TextRequest, kw_only=True):
    """`POST /embed_all` and `/embed_sparse` of TEI: vectors of each token, and sparse ones."""

    inputs: str | list[str]
    prompt_name: Name | None = None


class ClassifyRequest(TextRequest, kw_only=True):
    """`POST /classify`: the labels of each input."""

    input: Inputs


class PoolingRequest(TextRequest, kw_only=True):
    """`POST /pooling`: what the model makes of each input; `task` says what of several things."""

    input: Inputs
    task: str | None = None


class TeiPredictRequest(TextRequest, kw_only=True):
    """`POST /predict` of TEI: the labels of texts, or of pairs of them."""

    inputs: str | list[str | list[str]]
    raw_scores: bool | None = None


class ScoreRequest(TextRequest, kw_only=True):
    """`POST /score`: how well texts go together; a single first text is one of all pairs."""

    text_1: str | list[str]
    text_2: str | list[str]


class RerankRequest(TextRequest, kw_only=True):
    """`POST /v1/rerank`, `/v2/rerank` and `/rerank`: Cohere's fields, or TEI's (`texts`)."""

    query: str
    documents: list[Document] | None = None
    texts: list[str] | None = None
    top_n: Count | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    raw_scores: bool | None = None
