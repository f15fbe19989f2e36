"""Conversion of the runtime's models and requests to the structs of `Engine`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from ingot.artifact.reader import Artifact
from ingot.errors import IngotError, InternalError, RequestError, describe
from ingot.runtime.generation_config import read_generation_config
from ingot.runtime.model import Model
from ingot.runtime.output import Logprob
from ingot.runtime.params import SamplingParams
from ingot.runtime.request import CompletionReader, Request, metrics_of
from ingot.runtime.subscription import Feed
from ingot.serve.engine import Job, ModelFacts, Piece, Progress, Scored
from ingot.serve.settings import ModelSettings
from ingot.version import __version__

_log = logging.getLogger(__name__)

# A job cannot say these: they are code, or of no use where all progress is what is new.
_OURS = ("logits_processors", "output_kind")


def add_job(feed: Feed, number: int, job: Job) -> None:
    """Runs a job under a number. Raises RequestError."""
    for name in _OURS:
        if name in job.params:
            raise RequestError(
                f"{name} is given", hint="A model that is served cannot be asked for that."
            )
    prompt: dict[str, Any] = {"prompt_token_ids": job.token_ids, "cache_salt": job.salt}
    if job.prompt is not None:
        prompt["prompt"] = job.prompt
    params = SamplingParams(**job.params)
    feed.add(number, prompt, params, priority=job.priority, stream=job.stream)


def told(news: Request | IngotError) -> Progress | IngotError:
    """Progress of a request since the last call; or the error that refused or ended it."""
    if isinstance(news, IngotError):
        return news
    try:
        return _progress(news)
    except IngotError as error:
        return error
    except Exception as error:  # the others of this step must not miss theirs
        _log.exception("progress of a request cannot be told")
        return InternalError(describe(error))


def _progress(request: Request) -> Progress:
    """Raises the error that ended the request."""
    if request.error is not None:
        raise request.error
    completions = request.completions
    first = request.nothing_delivered
    pieces = [_piece(completion) for completion in completions if completion.has_news]
    if not first and not request.finished:
        return Progress(pieces)
    sequence = completions[0].sequence
    return Progress(
        pieces,
        request.finished,
        sequence.num_cached if first else 0,
        _prompt_logprobs(completions[0]) if first else None,
        metrics_of([each.sequence for each in completions]) if request.finished else None,
    )


def _piece(completion: CompletionReader) -> Piece:
    new = completion.output(delta=True)
    scores = None
    if new.logprobs is not None:
        both = zip(new.token_ids, new.logprobs, strict=True)
        scores = [_scored(of_token, token) for token, of_token in both]
    return Piece(new.index, new.text, new.token_ids, scores, new.finish_reason, new.stop_reason)


def _prompt_logprobs(completion: CompletionReader) -> list[list[Scored] | None] | None:
    sequence = completion.sequence
    if sequence.params.prompt_logprobs is None:
        return None
    both = zip(sequence.prompt_ids[1:], sequence.prompt_logprobs, strict=True)
    return [None, *(_scored(completion.spell(of_token), token) for token, of_token in both)]


def _scored(logprobs: Mapping[int, Logprob], drawn: int) -> list[Scored]:
    """The drawn token first, the others in their order."""
    ids = [drawn, *(token for token in logprobs if token != drawn)]
    found = [(token, logprobs[token]) for token in ids]
    return [(token, lp.logprob, lp.rank, lp.decoded_token) for token, lp in found]


def facts_of(model: Model, settings: ModelSettings) -> ModelFacts:
    """Facts of a model that was opened with these settings."""
    artifact, limits = model.artifact, model.artifact.manifest.limits
    return ModelFacts(
        artifact_id=artifact.manifest.digest,
        fingerprint=fingerprint(artifact, settings),
        vocab_size=artifact.manifest.model.vocab_size,
        max_model_len=model.max_model_len,
        max_num_seqs=min(settings.seats or limits.max_num_seqs, limits.max_num_seqs),
        num_pages=model.counters().num_pages,
        page_size=limits.page_size,
        architecture=artifact.manifest.model.architecture,
        created=artifact.created,
        defaults=read_generation_config(artifact).defaults,
        pooler=artifact.manifest.pooler,
        generates=not artifact.manifest.encodes,
    )


def fingerprint(artifact: Artifact, settings: ModelSettings) -> str:
    """The version of ingot, and 8 digits of a hash of the artifact and its settings."""
    parts = (artifact.manifest.digest, settings.identity)
    return f"{__version__}-{hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:8]}"
