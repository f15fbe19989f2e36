"""Recording goldens of a model, by which every artifact of it can be checked.

The float32 reference continues each prompt by its likeliest tokens, and draws texts of its own.
Then each number format is tried: the model runs on the same tokens with the roundings, and the
weights, that a compile for this format would give it. The error that this makes is written down.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule

from ingot.artifact.golden import INT8_CACHE, encode_golden, model_of
from ingot.artifact.golden_rows import encode_rows
from ingot.compiler.compile import quantize
from ingot.compiler.continuing import Continuing
from ingot.compiler.describe import model_info, stored_format
from ingot.compiler.front import Front
from ingot.compiler.golden import ReferencePrompt, golden_outputs
from ingot.compiler.golden_rows import golden_rows
from ingot.compiler.golden_text import TEXT
from ingot.compiler.kept_front import front_of
from ingot.compiler.model import OpenModel, read_model
from ingot.compiler.options import Clock, CompileOptions, Progress, silent
from ingot.compiler.prompt_file import read_prompts
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.record_options import FORMATS, RecordOptions
from ingot.compiler.rounding import Rounded, roundings_of
from ingot.compiler.tokenizer import encode
from ingot.compiler.torch_threads import torch_threads
from ingot.errors import UsageError
from ingot.models.model_dir import ModelDir
from ingot.targets.target import kind_of

_FORMAT = re.compile(
    r"(?P<dtype>float32|bfloat16|float16)|"
    r"(?P<quantize>int8|int6|int5|int4)(-(g(?P<group>32|64|128)|(?P<channel>channel))(-zeros)?)?"
)
# What rounds most among the kinds of targets that compute so: activations to int8, on a CPU.
TARGETS = {"float16": "cuda:sm_80"}
TARGET = "cpu:portable"
# Of models that continue no text.
LONGER = (TEXT,)
TEXTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):",
    "First, preheat the oven to",
)


def record_golden(
    model_dir: ModelDir, options: RecordOptions, *, progress: Progress = silent, folder: Path
) -> bytes:
    """The content of a file of goldens; `folder` holds quantized weights meanwhile.

    Raises UsageError for options and prompts that cannot be used, and as `compile_model` does.
    """
    clock = Clock(progress)
    compiles = {name: compile_options(name, options.max_model_len) for name in options.formats}
    exact = read_model(model_dir, compile_options("float32", options.max_model_len), clock)
    with exact.checkpoint:
        if exact.resolved.encodes:
            options = of_texts(options)
        front, read = front_of(exact, clock), exact.checkpoint.read
        prompts = given_prompts(exact, options)
        if not exact.resolved.encodes:
            prompts = _continued(exact, front.reference, prompts, options, clock)
        with ExitStack() as stack:
            ways: dict[str, list[Rounded]] = {}
            for asked in options.formats:
                name, way = _way(model_dir, compiles[asked], front, folder, stack, clock)
                ways.setdefault(name, []).append(way)
            model, graph = model_of(model_info(exact, front)), front.graph(front.main)
            with clock.stage("golden", ", ".join(ways)):
                if exact.resolved.encodes:
                    program = front.main.program.name
                    return encode_rows(golden_rows(program, graph, read, prompts, model, ways))
                return encode_golden(golden_outputs(graph, read, prompts, model, ways))


def of_texts(options: RecordOptions) -> RecordOptions:
    """The options for a model that reads whole texts: nothing is continued, and there is no cache.

    Raises UsageError for number formats of a cache.
    """
    formats = options.formats
    if formats == FORMATS:
        formats = tuple(name for name in formats if not name.endswith(INT8_CACHE))
    for name in formats:
        if name.endswith(INT8_CACHE):
            raise UsageError(
                f"--formats has {name!r}, and the model reads whole texts",
                hint="It keeps no cache: leave it out.",
            )
    return replace(options, tokens=0, samples=0, formats=formats)


def compile_options(name: str, max_model_len: int | None) -> CompileOptions:
    """Options of a compile that gives a number format. Raises UsageError."""
    base = name.removesuffix(INT8_CACHE)
    found = _FORMAT.fullmatch(base)
    if found is None or (found["channel"] and found["quantize"] != "int8"):
        raise UsageError(
            f"--formats has {name!r}",
            hint="Supported: float32, bfloat16, float16, int8, int6, int5 and int4, integers also "
            f"with a group size, as in int4-g64 or int8-channel; each also with {INT8_CACHE}.",
        )
    return CompileOptions(
        targets=(TARGETS.get(base, TARGET),),
        dtype=found["dtype"] or "bfloat16",
        quantize=found["quantize"] or "none",
        group_size=found["group"] or found["channel"] or "",
        kv_dtype="int8" if name != base else "auto",
        max_model_len=max_model_len,
    )


def given_prompts(model: OpenModel, options: RecordOptions) -> list[ReferencePrompt]:
    """The prompts as tokens. Raises UsageError for one that the model does not take."""
    read: list[tuple[str, Any]]
    if options.prompts is not None:
        read = [*read_prompts(options.prompts)]
    else:
        texts = (*TEXTS, *(LONGER if model.resolved.encodes else ()))
        read = [(f"prompt {i}", text) for i, text in enumerate(texts, 1)]
    return [_given(model, where, prompt, options.tokens) for where, prompt in read]


def _given(model: OpenModel, where: str, prompt: str | list[int], more: int) -> ReferencePrompt:
    text = prompt if isinstance(prompt, str) else None
    if isinstance(prompt, str):
        tokens = encode(model.tokenizer, prompt, where, add_special_tokens=True)
    else:
        tokens = prompt
    longest, vocab_size = model.resolved.limits.max_model_len, model.config.vocab_size
    if not tokens:
        raise UsageError(f"{where} has no tokens", hint="Leave it out.")
    if unknown := [token for token in tokens if not 0 <= token < vocab_size]:
        raise UsageError(
            f"{where} has token {unknown[0]}",
            hint=f"The vocabulary has the tokens 0 to {vocab_size - 1}.",
        )
    if len(tokens) + more > longest:
        raise UsageError(
            f"{where} has {len(tokens)} tokens, and {more} are to follow",
            hint=f"The model takes {longest}. Shorten it, or give fewer --tokens.",
        )
    return ReferencePrompt(tokens, given=len(tokens), text=text)


def _continued(
    model: OpenModel,
    gm: GraphModule,
    given: list[ReferencePrompt],
    options: RecordOptions,
    clock: Clock,
) -> list[ReferencePrompt]:
    """The prompts with the likeliest tokens after them, then the texts that were drawn."""
    starts = [given[i % len(given)] for i in range(options.samples if options.tokens else 0)]
    sequences = given + [replace(each, sampled=True) for each in starts]
    draws = [np.random.default_rng([options.seed, i]) for i in range(len(starts))]
    generators = [None] * len(given) + draws
    ends = model.config.eos_token_ids
    texts = Continuing(gm, model.checkpoint.read)
    news = {i: [*each.tokens] for i, each in enumerate(sequences)}
    for count in range(options.tokens):
        clock.progress("sample", f"token {count + 1} of {options.tokens}", count / options.tokens)
        with torch_threads(1):  # a token of each sequence is too little to share out
            rows = texts.step(news)
        for i, row in rows.items():
            news[i] = [chosen(row, generators[i])]
            sequences[i] = replace(sequences[i], tokens=[*sequences[i].tokens, *news[i]])
        news = {i: new for i, new in news.items() if new[0] not in ends}
        if not news:
            break
    clock.progress("sample", f"{options.tokens} tokens", 1.0)
    return [replace(each, pieces=_pieces(model, each.tokens)) for each in sequences]


def _pieces(model: OpenModel, tokens: Sequence[int]) -> list[str]:
    """Each token as text."""
    return [model.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]


def chosen(logits: torch.Tensor, draws: np.random.Generator | None) -> int:
    """The likeliest token, or one that is drawn from the distribution as it is."""
    if draws is None:
        return int(logits.argmax())
    whole = torch.softmax(logits.double(), -1).cumsum(-1).numpy()
    return min(int(np.searchsorted(whole, draws.random() * whole[-1], "right")), len(whole) - 1)


def _way(
    model_dir: ModelDir,
    options: CompileOptions,
    exact: Front,
    folder: Path,
    stack: ExitStack,
    clock: Clock,
) -> tuple[str, Rounded]:
    """The name of the number format that options ask for, and how it rounds.

    `exact` is the front of the same model in float32.
    """
    model = read_model(model_dir, options, clock)
    stack.enter_context(model.checkpoint)
    front = front_of(model, clock, exact.reference)
    plan = kind_of(model.resolved.targets[0]).rewrite(front.plan, front.fine)
    weights = stack.enter_context(QuantizedWeights(model.checkpoint.read, folder))
    if front.storage:
        quantize(model, front, weights, clock)
    return stored_format(model, front), Rounded(roundings_of(plan), weights.stored)
