"""Answers about whole texts, for all fronts: from the fields of a request to its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from ingot.artifact.pooler import DOES, OF_TOKENS, Pooler, Task
from ingot.errors import RequestError
from ingot.runtime.arrays import Float32
from ingot.runtime.scoring import (
    activated,
    answered,
    by_rank,
    finished,
    prompt_of,
    scores_of,
    sparse,
    task_of,
)
from ingot.serve.openai.fields import FieldError
from ingot.serve.requests.context import ServerContext
from ingot.serve.texts import answers
from ingot.serve.texts.orders import Spelled, listed
from ingot.serve.texts.reading import Reading, reading
from ingot.serve.texts.requests import (
    MAX_INPUTS,
    MAX_PAIRS,
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TextRequest,
)

SCORES: tuple[Task, ...] = ("embed", "token_embed", "classify")  # models of these score pairs

Answer = Callable[[ServerContext, Any, str, bytes], Awaitable[Any]]


async def embed(server: ServerContext, request: EmbeddingRequest, key: str, body: bytes) -> Any:
    """OpenAI's embeddings."""
    async with reading(server, request, key, body, "embed") as model:
        texts = listed(request.input, "input", MAX_INPUTS)
        prompt = prompt_for(model.pooler, request.prompt_name)
        rows, usage = await model.rows(texts, request, "input", prompt)
        vectors = vectors_of(rows, model.pooler, request.dimensions, request.normalize)
        return answers.Embeddings(
            **answers.head("embd", model.name),
            data=answers.embeddings(vectors, as_base64=request.encoding_format == "base64"),
            usage=usage,
        )


async def tei_embed(server: ServerContext, request: TeiEmbedRequest, key: str, body: bytes) -> Any:
    """TEI's embeddings: a list of vectors."""
    async with reading(server, request, key, body, "embed") as model:
        texts = listed(request.inputs, "inputs", MAX_INPUTS)
        prompt = prompt_for(model.pooler, request.prompt_name)
        rows, _ = await model.rows(texts, request, "inputs", prompt)
        return vectors_of(
            rows, model.pooler, request.dimensions, request.normalize is not False
        ).tolist()


async def tei_embed_sparse(
    server: ServerContext, request: TeiEmbedAllRequest, key: str, body: bytes
) -> Any:
    """TEI's sparse vectors: of each text the numbers that are not 0, and their places."""
    async with reading(server, request, key, body, "embed") as model:
        if not model.pooler.sparse:
            raise FieldError(
                "model",
                f"the vectors of the model {model.name[:80]!r} are not sparse",
                hint="This needs a SPLADE model.",
                code="unsupported_task",
            )
        texts = listed(request.inputs, "inputs", MAX_INPUTS)
        prompt = prompt_for(model.pooler, request.prompt_name)
        rows, _ = await model.rows(texts, request, "inputs", prompt)
        return [answers.sparse_values(each) for each in sparse(finished(rows, model.pooler))]


async def tei_embed_all(
    server: ServerContext, request: TeiEmbedAllRequest, key: str, body: bytes
) -> Any:
    """TEI's vectors of tokens: a list of them for each text."""
    async with reading(server, request, key, body, "embed", "token_embed") as model:
        check_task(model, "token_embed", "model")
        texts = listed(request.inputs, "inputs", MAX_INPUTS)
        prompt = prompt_for(model.pooler, request.prompt_name)
        rows, _ = await model.token_rows(texts, request, "inputs", prompt)
        if model.pooler.task == "token_embed":
            rows = [finished(each, model.pooler) for each in rows]
        return [each.tolist() for each in rows]


async def pool(server: ServerContext, request: PoolingRequest, key: str, body: bytes) -> Any:
    """vLLM's rows, as the model makes them."""
    async with reading(server, request, key, body, *DOES) as model:
        task = check_task(model, request.task, "task")
        texts = listed(request.input, "input", MAX_INPUTS)
        if task in OF_TOKENS:
            rows_of_tokens, usage = await model.token_rows(texts, request, "input")
            made = [answered(each, model.pooler) for each in rows_of_tokens]
        else:
            rows, usage = await model.rows(texts, request, "input")
            made = [*answered(rows, model.pooler)]
        data = [answers.Pooled(index=i, data=each.tolist()) for i, each in enumerate(made)]
        return answers.Poolings(**answers.head("pool", model.name), data=data, usage=usage)


async def classify(server: ServerContext, request: ClassifyRequest, key: str, body: bytes) -> Any:
    """vLLM's labels."""
    async with reading(server, request, key, body, "classify") as model:
        rows, usage = await model.rows(listed(request.input, "input", MAX_INPUTS), request, "input")
        data = answers.labels(activated(rows, model.pooler), model.pooler)
        return answers.Labels(**answers.head("classify", model.name), data=data, usage=usage)


async def tei_predict(
    server: ServerContext, request: TeiPredictRequest, key: str, body: bytes
) -> Any:
    """TEI's labels: of one text a list, of several a list of lists."""
    async with reading(server, request, key, body, "classify") as model:
        given = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        rows, _ = await model.rows([_text_or_pair(each) for each in given], request, "inputs")
        rows = rows if request.raw_scores else activated(rows, model.pooler)
        found = answers.tei_labels(rows, model.pooler)
        return found[0] if isinstance(request.inputs, str) else found


async def score(server: ServerContext, request: ScoreRequest, key: str, body: bytes) -> Any:
    """vLLM's scores of pairs."""
    pairs = pairs_of(request)
    async with reading(server, request, key, body, *SCORES) as model:
        found, usage = await scored(model, pairs, request)
        data = [answers.Score(index=i, score=value) for i, value in enumerate(found.tolist())]
        return answers.Scores(**answers.head("score", model.name), data=data, usage=usage)


async def rerank(server: ServerContext, request: RerankRequest, key: str, body: bytes) -> Any:
    """Cohere's reranking; TEI's where the documents are called `texts`."""
    given = request.texts if request.documents is None else request.documents
    if not given:
        raise FieldError("documents", "documents are missing", code="missing_required_parameter")
    texts = [_document(each, i) for i, each in enumerate(given)]
    if len(texts) > MAX_PAIRS:
        raise FieldError("documents", f"documents are {len(texts)}; at most {MAX_PAIRS}")
    async with reading(server, request, key, body, *SCORES) as model:
        pairs = [(request.query, text) for text in texts]
        found, usage = await scored(model, pairs, request, raw=bool(request.raw_scores))
        ranked = by_rank(found, request.top_n)
        if request.documents is None:
            return [
                answers.TeiRanked(
                    index=i, score=value, text=texts[i] if request.return_text else msgspec.UNSET
                )
                for i, value in ranked
            ]
        shown = request.return_documents
        results = [
            answers.Ranked(
                index=i,
                relevance_score=value,
                document={"text": texts[i]} if shown else msgspec.UNSET,
            )
            for i, value in ranked
        ]
        begin = answers.head("rerank", model.name)
        return answers.Reranking(id=begin["id"], model=model.name, results=results, usage=usage)


async def scored(
    model: Reading, pairs: Sequence[tuple[str, str]], request: TextRequest, *, raw: bool = False
) -> tuple[Float32, answers.TextUsage]:
    """How well the texts of each pair go together: by a model that scores pairs, or by how alike
    the vectors of the two, or of their tokens, are. Raises FieldError."""
    if model.pooler.task == "classify":
        if model.pooler.size != 1:
            raise FieldError(
                "model",
                f"the model {model.name[:80]!r} has {model.pooler.size} labels, and no one score",
                hint="Ask POST /classify.",
                code="unsupported_task",
            )
        rows, usage = await model.rows(pairs, request, "documents")
        return (rows if raw else activated(rows, model.pooler))[:, 0], usage
    texts = [*dict.fromkeys(text for pair in pairs for text in pair)]
    read = model.token_rows if model.pooler.task == "token_embed" else model.rows
    found, usage = await read(texts, request, "documents")
    places = {text: i for i, text in enumerate(texts)}
    return scores_of(found, [(places[a], places[b]) for a, b in pairs], model.pooler), usage


def check_task(model: Reading, wanted: str | None, param: str) -> str:
    """What a model makes of texts, where that is wanted of it. Raises FieldError."""
    try:
        return task_of(model.pooler, wanted)
    except RequestError as error:
        raise FieldError(
            param,
            f"{error.found}, which the model {model.name[:80]!r} was not made for",
            hint=error.hint,
            code="unsupported_task",
        ) from None


def pairs_of(request: ScoreRequest) -> list[tuple[str, str]]:
    """The pairs of a request: a single first text goes with each of the second ones."""
    first, second = (
        [given] if isinstance(given, str) else given for given in (request.text_1, request.text_2)
    )
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second) or not first:
        raise FieldError(
            "text_2",
            f"text_1 has {len(first)} texts and text_2 {len(second)}",
            hint="Give one first text, or as many as second ones.",
        )
    if len(first) > MAX_PAIRS:
        raise FieldError("text_2", f"text_2 has {len(second)} texts; at most {MAX_PAIRS}")
    return [*zip(first, second, strict=True)]


def prompt_for(pooler: Pooler, name: str | None) -> str:
    """The prompt of that name. Raises FieldError."""
    try:
        return prompt_of(pooler, name)
    except RequestError as error:
        raise FieldError("prompt_name", error.found, hint=error.hint) from None


def vectors_of(
    rows: Float32, pooler: Pooler, dimensions: Any = None, normalize: bool | None = None
) -> Float32:
    """Vectors as they leave. Raises FieldError for a size that they cannot be cut to."""
    try:
        return finished(rows, pooler, dimensions, normalize=bool(normalize))
    except RequestError as error:
        raise FieldError("dimensions", error.found, hint=error.hint) from None


def _document(given: Any, place: int) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise FieldError(
            f"documents[{place}]",
            f"documents[{place}] has no text",
            hint='Give a text, or {"text": ..}.',
        )
    return text


def _text_or_pair(given: str | list[str]) -> Spelled:
    if isinstance(given, str):
        return given
    if len(given) not in (1, 2):
        raise FieldError("inputs", f"a list of {len(given)} texts", hint="Give a text, or a pair.")
    return given[0] if len(given) == 1 else (given[0], given[1])
