"""Sessions of the model of docs/add_a_state.md, on both targets; see tests/test_add_a_state.py."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from shifted import save_model  # type: ignore[import-not-found]

from ingot import LLM
from ingot.artifact.reader import Artifact
from ingot.compiler.compile import compile_model
from ingot.compiler.options import CompileOptions
from ingot.runtime.config import EngineConfig
from ingot.runtime.pool_size import PoolSize
from tests.runtime.session_checks import (
    DRAWN,
    bits,
    check_bits,
    check_logits,
    check_memory,
    check_rewinding,
    seeded,
)
from tests.targets.cuda.simulation import compile_sketch, simulated

IDS = np.random.default_rng(1).integers(256, size=43).tolist()


def on_a_cpu(folder: Path) -> None:
    model_dir, out = save_model(folder / "model"), folder / "cpu.ingot"
    compile_model(model_dir, out, CompileOptions(dtype="float32", max_model_len=96))
    plan = Artifact.open(out).plan
    assert plan.slot_bytes and not plan.rewinds
    open_model = partial(LLM, out)
    check_bits(open_model, IDS, folder)
    check_logits(open_model, IDS, folder)
    check_rewinding(open_model, IDS)
    check_prompts(out, folder)
    check_memory(open_model, IDS, PoolSize(num_pages=14, num_slots=3).nbytes(plan))


def check_prompts(out: Path, folder: Path) -> None:
    """The end of a prompt's last whole page is found again, with its record."""
    config = EngineConfig(prompt_cache=str(folder / "kept"))
    found = []
    for _ in range(3):
        with LLM(out, config=config) as llm:
            outputs = [
                llm.generate([ids], seeded(DRAWN))[0] for ids in (IDS, IDS[:37], [*IDS, 5, 6, 7])
            ]
            assert [bits(each) for each in outputs] == (found or [bits(each) for each in outputs])
            llm._engine._residence.check()
            cached = [each.num_cached_tokens for each in outputs]
        found = [bits(each) for each in outputs]
    assert cached[0] == 32 and llm.artifact.plan.limits.page_size == 16


def on_a_card(folder: Path) -> None:
    card = compile_sketch(
        save_model(folder / "model").path, folder / "cuda.ingot", dtype="float32", max_model_len=64,
        max_num_seqs=4, max_num_batched_tokens=32,
    )  # fmt: skip
    check_bits(partial(simulated, card), IDS[:18], folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        {"cpu": on_a_cpu, "card": on_a_card}[sys.argv[1]](Path(name))
    print("all bits are the same")
