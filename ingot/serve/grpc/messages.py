"""Messages of `ingot.v1` as the fields of HTTP's requests, and progress as messages."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from ingot.runtime.metrics import RequestMetrics
from ingot.serve import engine
from ingot.serve.engine import Piece, Progress, Scored
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.grpc.tensors import object_of
from ingot.serve.openai.fields import FieldError


def body_of(request: Any) -> dict[str, Any]:
    """The body that asks the same by HTTP. Raises FieldError for a request without a prompt."""
    body = {
        "model": request.model or None,
        "priority": request.priority,
        "cache_salt": request.cache_salt or None,
        **params_of(request.params),
    }
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return body | {"prompt": request.text}
    if kind == "token_ids":
        return body | {"prompt": [*request.token_ids.ids]}
    if kind == "conversation":
        return _of_chat(body) | _conversation(request.conversation)
    raise FieldError(
        "prompt",
        "the request has no prompt",
        hint="Set text, token_ids or conversation.",
        code="missing_required_parameter",
    )


def params_of(params: Any) -> dict[str, Any]:
    """The fields that are set."""
    found: dict[str, Any] = {}
    for field, value in params.ListFields():
        if field.name == "structured_outputs":
            found[field.name] = _structured(value)
        elif field.name == "logit_bias":
            found[field.name] = {str(token): bias for token, bias in value.items()}
        else:
            found[field.name] = [*value] if field.is_repeated else value
    return found


def _conversation(given: Any) -> dict[str, Any]:
    """The fields that are set, and the messages. Raises FieldError."""
    found: dict[str, Any] = {
        "messages": [{"role": each.role, "content": each.content} for each in given.messages]
    }
    if given.chat_template:
        found["chat_template"] = given.chat_template
    if text := given.chat_template_kwargs:
        found["chat_template_kwargs"] = object_of("chat_template_kwargs", text)
    return found


def _of_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A conversation asks for log-probabilities in another way."""
    count = body.pop("logprobs", None)
    return body if count is None else body | {"logprobs": True, "top_logprobs": count}


def _structured(value: Any) -> dict[str, Any]:
    kind = value.WhichOneof("kind")
    if kind is None:
        return {}
    return {kind: [*value.choice.texts] if kind == "choice" else getattr(value, kind)}


def response_of(progress: Progress, model: str, request_id: str) -> Any:
    """Message of a step's progress."""
    response = v1.GenerateResponse(
        request_id=request_id, model=model, completions=map(_completion, progress.pieces)
    )
    if progress.prompt_logprobs is not None:
        response.prompt_logprobs.extend(_position(each or ()) for each in progress.prompt_logprobs)
    if progress.metrics is not None:
        response.usage.CopyFrom(_usage(progress.metrics))
    return response


def joined(parts: Sequence[Progress]) -> Progress:
    """All progress of a job as one, with a piece for each completion, in their order."""
    whole = engine.joined([*parts])
    return replace(whole, pieces=sorted(whole.pieces, key=attrgetter("index")))


def _completion(piece: Piece) -> Any:
    found = v1.Completion(
        index=piece.index,
        text=piece.text,
        token_ids=piece.token_ids,
        finish_reason=piece.finish_reason or "",
    )
    if piece.logprobs:
        found.logprobs.extend(map(_position, piece.logprobs))
    if isinstance(piece.stop_reason, str):
        found.stop_text = piece.stop_reason
    elif piece.stop_reason is not None:
        found.stop_token_id = piece.stop_reason
    return found


def _position(scores: Sequence[Scored]) -> Any:
    return v1.Position(
        tokens=[
            v1.Scored(token_id=token, logprob=logprob, rank=rank, text=text)
            for token, logprob, rank, text in scores
        ]
    )


def _usage(metrics: RequestMetrics) -> Any:
    return v1.Usage(
        prompt_tokens=metrics.num_prompt_tokens,
        completion_tokens=metrics.num_generated_tokens,
        cached_tokens=metrics.num_cached_tokens,
        queue_seconds=metrics.queue_seconds or 0.0,
        ttft_seconds=metrics.ttft_seconds or 0.0,
        total_seconds=metrics.total_seconds or 0.0,
    )
