"""GGUF files on the simulated device: their own numbers, whatever their types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

from bench.make_model import write_byte_tokenizer
from ingot import LLM
from ingot.artifact.reader import Artifact
from ingot.models.gguf.types import BY_NAME
from tests.end_to_end.support import random_tokens, relative_error
from tests.support.checkpoints import plain_logits
from tests.support.gguf_files import Type, write_gguf
from tests.support.tiny_models import EVERY, VOCAB_SIZE, randomise
from tests.targets.cuda.matrices import TWO_LEVELS
from tests.targets.cuda.simulation import TARGET, compile_sketch, simulated

LENGTH = 20
SIZE = 256  # columns of a block of most types
KINDS = {
    "token_embd.weight": "Q4_1", "output.weight": "IQ4_NL",
    "blk.0.attn_q.weight": "Q5_1", "blk.0.attn_k.weight": "Q5_1", "blk.0.attn_v.weight": "Q6_K",
    "blk.0.attn_output.weight": "Q3_K", "blk.0.ffn_down.weight": "IQ4_XS",
    "blk.0.ffn_gate.weight": "Q2_K", "blk.0.ffn_up.weight": "Q2_K",
    "blk.1.ffn_gate.weight": "Q5_K", "blk.1.ffn_up.weight": "Q5_K",
}  # fmt: skip
# Of logits against those of the numbers: a GPU rounds to bfloat16, a CPU also to int8.
LIMIT, LIMIT_OF_CPU = 1e-2, 4e-2


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose matrices have all types."""
    folder = tmp_path_factory.mktemp("gguf")
    config = EVERY["llama"]()
    config.update({"hidden_size": SIZE, "intermediate_size": SIZE, "head_dim": SIZE // 4})
    model = transformers.LlamaForCausalLM(config)
    randomise(model, 1.0)
    model.save_pretrained(folder / "model")
    write_byte_tokenizer(folder / "model", VOCAB_SIZE)
    return write_gguf(
        folder / "model", folder / "a.gguf", lambda name: Type[KINDS.get(name, "Q4_K")]
    )


@pytest.mark.thorough
def test_logits_are_those_of_the_numbers(file: Path, tmp_path: Path) -> None:
    """To the bit the same in chunks, which take other kernels; and nearly those of a CPU."""
    path = compile_sketch(
        file, tmp_path / "a.ingot", (TARGET, "cpu:native"), dtype="bfloat16", max_model_len=32,
        max_num_seqs=4, max_num_batched_tokens=48,
    )  # fmt: skip
    assert {*KINDS.values(), "Q4_K"} == {*TWO_LEVELS}
    storage = [BY_NAME[kind].storage for kind in TWO_LEVELS]
    tokens = random_tokens(LENGTH)
    with simulated(path) as llm:
        formats = {b.format for b in llm.artifact.plan.of_kind("weight") if b.format.is_scaled}
        got, chunks = llm.logits(tokens), llm.logits(tokens, chunk_tokens=7)
    assert formats == {each.of(SIZE) for each in storage if each}
    with LLM(Artifact.open(path, device="cpu")) as llm:
        of_cpu = llm.logits(tokens)
    right = plain_logits(file, tokens)
    assert relative_error(got, right) <= LIMIT
    assert relative_error(of_cpu, right) <= LIMIT_OF_CPU
    assert np.array_equal(got, chunks)
