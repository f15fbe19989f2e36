"""Compiles tiny random models and asks `transformers` what they must say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers

from ingot.artifact.reader import Artifact
from ingot.compiler import compile as compiler
from ingot.compiler.options import CompileOptions
from ingot.errors import IngotError
from ingot.models.model_dir import ModelDir
from ingot.runtime.llm import LLM
from ingot.targets.cpu.levels import LEVELS
from ingot.targets.target import requires, target_named
from tests.end_to_end.picks import Routers, with_picks_of
from tests.support.checkpoints import module_logits, plain_module
from tests.support.text_models import KINDS, saved
from tests.support.tiny_models import STATES, VOCAB_SIZE, save_random

BUNDLED = Path(__file__).parents[2] / "golden" / "models" / "shakespeare"
LIMITS = {"float32": 1e-4, "bfloat16": 3e-2}
# Random weights are the hardest to round.
QUANTIZED_LIMITS = {"int8": 4e-2, "int4": 2.5e-1}
# Of models whose heads normalise what they read of a state, however little that is: roundings of
# queries and keys that hardly meet turn it.
STATE_LIMITS = {**LIMITS, "bfloat16": 4e-2, "int8": 1e-1}


def limit_of(name: str, stored: str) -> float:
    """The limit of a case whose weights are stored so: in a dtype, or in integers."""
    return (STATE_LIMITS if name in STATES else {**LIMITS, **QUANTIZED_LIMITS})[stored]


@dataclass(frozen=True)
class Compile:
    """What is compiled: a case, its weights in a dtype, and the options."""

    name: str
    dtype: str
    max_model_len: int
    targets: tuple[str, ...] = ("cpu:native",)
    disable_passes: tuple[str, ...] = ()
    quantize: str = "none"
    group_size: str = "32"
    kv_dtype: str = "auto"


Compiled = Callable[[Compile], tuple[Path, Path]]


def compile_case(case: Compile, folder: Path) -> tuple[Path, Path]:
    """The model directory, and the artifact compiled from it."""
    model_dir, out = folder / "model", folder / "model.ingot"
    if case.name == BUNDLED.name:
        shutil.copytree(BUNDLED, model_dir)
    elif case.name in KINDS:
        saved(KINDS[case.name].build("Model"), model_dir)
    else:
        save_random(case.name, model_dir, case.dtype, tokenizer=True)
    options = CompileOptions(
        targets=case.targets,
        dtype=case.dtype,
        max_model_len=case.max_model_len,
        disable_passes=case.disable_passes,
        quantize=case.quantize,
        group_size="" if case.quantize == "none" else case.group_size,
        kv_dtype=case.kv_dtype,
    )
    try:
        compiler.compile_model(ModelDir.open(model_dir), out, options)
    except IngotError as error:  # not every one can be sent to another process
        raise AssertionError(f"{case} does not compile: {error}") from error
    return model_dir, out


def open_as(artifact: Path, target: str, **options: int) -> LLM:
    """Opens an artifact as a host would that has just what the target needs."""
    flags = requires(target_named(target)) if target != "cpu:native" else None
    return LLM(Artifact.open(artifact, flags=flags), **options)


def judge(model_dir: Path) -> torch.nn.Module:
    """The model in `transformers`: the same weights, float32, eager attention."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"], "transformers would draw them"
    return model.eval()


def judged_logits(model: torch.nn.Module, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def judged_greedy(
    model: torch.nn.Module, tokens: list[int], count: int
) -> tuple[list[int], list[np.ndarray]]:
    """Greedy tokens without a cache, and the logits that each was chosen from."""
    tokens, rows = list(tokens), []
    for _ in range(count):
        rows.append(judged_logits(model, tokens)[-1])
        tokens.append(int(rows[-1].argmax()))
    return tokens[-count:], rows


def check_logits(llm: LLM, model_dir: Path, lengths: tuple[int, ...], limit: float) -> None:
    """Logits are those of `transformers`, and the same bits in chunks."""
    reference = partial(judged_logits, judge(model_dir))
    check_rows(llm, reference, plain_module(model_dir), lengths, limit)


def check_rows(
    llm: LLM,
    reference: Callable[[list[int]], np.ndarray],
    module: torch.nn.Module,
    lengths: tuple[int, ...],
    limit: float,
) -> None:
    """Logits are those of a reference, and the same bits in chunks.

    Tokens that rounding moves to other experts are held against the plain module with these.
    """
    for length in lengths:
        tokens = random_tokens(length)
        expected = reference(tokens)
        got = llm.logits(tokens)
        if relative_error(got, expected) > limit:
            assert relative_error(module_logits(module, tokens), expected) <= 1e-5
            expected = with_picks_of(got, module, tokens, limit, Routers())
        assert relative_error(got, expected) <= limit
        assert expected.std() > 0.1, "degenerate logits prove nothing"
        for chunk in (1, 7):
            assert llm.logits(tokens, chunk_tokens=chunk).tobytes() == got.tobytes()


def random_tokens(length: int) -> list[int]:
    rng = np.random.default_rng(length)
    return rng.integers(0, VOCAB_SIZE, length).tolist()


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


def levels() -> tuple[str, ...]:
    """Every CPU level, the widest with its bfloat16 instructions and without."""
    return ("cpu:x86-64-v4+avx512_bf16", *(f"cpu:{level}" for level in LEVELS))
