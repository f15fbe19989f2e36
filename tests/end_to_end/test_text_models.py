"""Models of whole texts, from published files to kernels, against transformers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import ingot
from ingot.artifact.plan import Limits, Plan
from ingot.artifact.programs import ENCODE, TOKENS, Program
from ingot.artifact.reader import Artifact
from ingot.compiler.export import export
from ingot.compiler.interpret import interpret, plan_weights
from ingot.compiler.lower import lower
from ingot.compiler.program_graphs import blocks_of, graph_of, result_of
from ingot.errors import (
    CheckpointError,
    ConfigError,
    IngotError,
    RequestError,
    UnsupportedModelError,
    UsageError,
)
from ingot.models import registry
from ingot.models.checkpoints.checkpoint import Checkpoint
from ingot.models.counts import module_counts
from ingot.models.model_dir import ModelDir
from ingot.passes import runner
from ingot.passes.pipeline import NARROW, pipeline
from ingot.runtime.encoder import EncodedText, TextEncoder
from ingot.runtime.verify import replay
from ingot.targets.cuda.kind import KIND as CUDA
from ingot.targets.target import target_named
from tests.ops.sample_inputs import segments
from tests.support.core import core
from tests.support.text_models import (
    KINDS,
    POOLS,
    SIZES,
    TAGS,
    TEXTS,
    colbert,
    colbert_dir,
    projected,
    rows,
    saved,
    splade,
    splade_dir,
    tagger,
    weighed,
    wide_embedder,
    with_modules,
    without_prompt,
    write,
    writer,
)

LIMITS = Limits(
    max_model_len=64, max_num_seqs=8, max_num_batched_tokens=64, max_logit_rows=8, page_size=16
)
MOST = 2e-5  # relative


def interpreted(
    folder: Path,
    texts: list[list[int]],
    types: list[int] = (),
    *,
    unpooled: list[int] = (),
    verify: bool = False,
    dtype: str = "float32",
    program: Program = ENCODE,
) -> tuple[Plan, Tensor]:
    """The plan of a directory, and what it gives for some texts side by side."""
    model_dir = ModelDir.open(folder)
    config = registry.load_config(model_dir)
    module = registry.build(config, max_model_len=LIMITS.max_model_len)
    exported = export(module, config)
    gm = graph_of(exported, program, result_of(exported, program))
    counts = module_counts(module, blocks_of(gm, program))
    runner.run(gm, pipeline(program, dtype=dtype), counts, verify=verify)
    plan = lower(gm, LIMITS)
    lengths = [*map(len, texts)]
    arrays = {
        "tokens": torch.tensor([token for text in texts for token in text]),
        "positions": torch.cat([torch.arange(n) for n in lengths]),
        "spans": segments(lengths, unpooled),
    }
    if types:
        arrays["positions"] += torch.tensor(types) * config.max_position_embeddings
    with Checkpoint.open(model_dir, config, module) as checkpoint:
        inputs = {name: x.int() for name, x in arrays.items()}
        made = interpret(plan, plan_weights(checkpoint.read), inputs, {})[-1]
    return plan, made[program.names[0]]


def error(got: Tensor, wanted: Tensor) -> float:
    return ((got - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize(
    ("kind", "pooling"),
    core(
        *((kind, ("mean",)) for kind in KINDS),
        ("bert", ("cls",)),
        ("bert", ("cls", "max", "mean")),
        ("modernbert", tuple(POOLS)),
        further=[("bert", ways) for ways in (*zip(POOLS), ("cls", "lasttoken"))],
    ),
)
def test_pooled_rows_are_those_of_transformers(
    kind: str, pooling: tuple[str, ...], tmp_path: Path
) -> None:
    judge = KINDS[kind].build("Model")
    folder = with_modules(saved(judge, tmp_path), *pooling)
    found = [rows(judge, text) for text in TEXTS]
    wanted = torch.stack([torch.cat([POOLS[name](each) for name in pooling]) for each in found])
    plan, got = interpreted(folder, TEXTS, verify="cls" in pooling)
    assert error(got, wanted) < MOST
    assert not plan.spec.states and {i.op for i in plan.instructions} >= {"segment_attention"}


@pytest.mark.parametrize(
    "kind",
    core("bert", "roberta", "deberta v3", further=[each for each in KINDS if each != "gemma3"]),
)
def test_scores_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    judge = KINDS[kind].build("ForSequenceClassification")
    wanted = torch.stack([rows(judge, text) for text in TEXTS])
    _, got = interpreted(saved(judge, tmp_path), TEXTS)
    assert error(got, wanted) < MOST


@pytest.mark.parametrize(
    "kind",
    core(
        *("bert", "roberta", "distilbert", "modernbert", "mpnet"),
        further=("deberta v3", "nomic", "jina v3"),
    ),
)
def test_labels_of_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    judge = KINDS[kind].build("ForTokenClassification")
    found = [rows(judge, text) for text in TEXTS]
    plan, got = interpreted(saved(judge, tmp_path), TEXTS, program=TOKENS)
    assert error(got, torch.cat(found)) < MOST < error(got, torch.cat(found[::-1]))
    assert "pool" not in {i.op for i in plan.instructions}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_queries_keys_and_values_can_be_stored_in_16_bits(dtype: str, tmp_path: Path) -> None:
    judge = KINDS["modernbert"].build("Model")
    wanted = torch.stack([rows(judge, text).mean(0) for text in TEXTS])
    plan, got = interpreted(with_modules(saved(judge, tmp_path)), TEXTS, dtype=dtype)
    assert MOST < error(got, wanted) < NARROW[dtype][1]
    mixers = [i for i in plan.instructions if i.op == "segment_attention"]
    assert {plan.buffer(i.inputs[name]).dtype for i in mixers for name in "qkv"} == {dtype}


def test_the_second_text_of_a_pair_has_a_type_of_its_own(tmp_path: Path) -> None:
    judge = KINDS["bert"].build("ForSequenceClassification")
    types = [0, 0, 1, 1, 1]
    wanted = rows(judge, TEXTS[0], token_type_ids=torch.tensor([types]))
    plain = rows(judge, TEXTS[0])
    _, got = interpreted(saved(judge, tmp_path), TEXTS[:1], types)
    assert error(got[0], wanted) < MOST < error(got[0], plain)


def test_dense_layers_follow_the_pooled_row(tmp_path: Path) -> None:
    judge = KINDS["bert"].build("Model")
    folder = with_modules(saved(judge, tmp_path), "max", "mean", dense=[44, 28])
    found = [rows(judge, text) for text in TEXTS]
    wanted = torch.stack([torch.cat([each.amax(0), each.mean(0)]) for each in found])
    for name in ("2_Dense", "3_Dense"):
        layer = load_file(folder / name / "model.safetensors")
        wanted = torch.tanh(wanted @ layer["linear.weight"].T + layer["linear.bias"])
    _, got = interpreted(folder, TEXTS)
    assert error(got, wanted) < MOST


def test_the_first_token_spares_the_last_layer_of_all_others(tmp_path: Path) -> None:
    """Its rows are taken before the last output projection, not behind the last norm."""
    judge = KINDS["bert"].build("Model")
    plan, _ = interpreted(with_modules(saved(judge, tmp_path), "cls"), TEXTS)
    ops = [i.op for i in plan.instructions]
    assert ops[ops.index("pool") :].count("linear") == 3  # output projection, up and down


def test_a_first_token_is_taken_early_only_where_no_other_is_read(tmp_path: Path) -> None:
    judge = KINDS["bert"].build("Model")
    plan, _ = interpreted(with_modules(saved(judge, tmp_path), "cls", "mean"), TEXTS)
    ops = [i.op for i in plan.instructions]
    assert ops[ops.index("pool") :] == ["pool", "pool", "concat"]


def test_rows_of_a_prompt_are_left_out(tmp_path: Path) -> None:
    """Their places count nevertheless, where later tokens weigh more."""
    judge, unpooled = KINDS["bert"].build("Model"), [2, 0, 39]
    folder = with_modules(saved(judge, tmp_path), *POOLS, include_prompt=False)
    both = zip(TEXTS, unpooled, strict=True)
    wanted = torch.stack([without_prompt(rows(judge, text), start) for text, start in both])
    _, got = interpreted(folder, TEXTS, unpooled=unpooled)
    assert error(got, wanted) < MOST
    _, whole = interpreted(folder, TEXTS)
    assert error(whole, wanted) > 0.1


@pytest.fixture(scope="module")
def wide() -> Iterator[ingot.Embedder]:
    with ingot.Embedder(wide_embedder()) as model:
        yield model


def test_kernels_pool_in_several_ways_and_leave_out_a_prompt(wide: ingot.Embedder) -> None:
    texts = ["or not", "that is the question"]
    count = len(wide.tokenizer.encode("To be "))
    tokens = [wide.tokenizer.encode("To be " + text) for text in texts]
    wanted = torch.stack([without_prompt(rows(judge(), each), count) for each in tokens])
    got = wide.encode(texts, prompt_name="query")
    assert got.shape == (2, 360) and error(torch.tensor(got), wanted) < MOST
    plain = torch.stack([without_prompt(rows(judge(), each), 0) for each in tokens])
    assert error(torch.tensor(wide.encode(tokens, prompt_name="query")), plain) < MOST
    assert got[1].tobytes() == wide.encode(texts[1], prompt_name="query").tobytes()
    with pytest.raises(RequestError, match="text 1 has no token behind its prompt"):
        wide.encode(["or not", ""], prompt_name="query")


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_rows_of_tokens_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    judge = KINDS[kind].build("Model")
    folder = with_modules(saved(judge, tmp_path), "cls", dense=[44])
    plan, got = interpreted(folder, TEXTS, program=TOKENS, verify=True)
    assert error(got, torch.cat([rows(judge, text) for text in TEXTS])) < MOST
    assert not {"pool", "soft_cap"} & {i.op for i in plan.instructions}


@pytest.mark.parametrize("program", [ENCODE, TOKENS], ids=lambda program: program.name)
def test_a_gpu_has_launches_for_it(program: Program, tmp_path: Path) -> None:
    judge = KINDS["modernbert"].build("Model")
    folder = with_modules(saved(judge, tmp_path), "mean", "max")
    plan, _ = interpreted(folder, TEXTS, program=program)
    placed = CUDA.place(CUDA.group(CUDA.rewrite(plan))[0])
    text = "".join(CUDA.sources(placed, target_named("cuda:sm_90")).values())
    pools = program is ENCODE
    assert ("rows.pool" in text) == ("rows.concat" in text) == pools
    assert "segments.attend_segments" in text


def test_biases_by_distance_are_sums_and_stay_wide(tmp_path: Path) -> None:
    judge = KINDS["deberta v3"].build("Model")
    wanted = torch.stack([rows(judge, text).mean(0) for text in TEXTS])
    plan, got = interpreted(with_modules(saved(judge, tmp_path)), TEXTS, dtype="bfloat16")
    assert MOST < error(got, wanted) < NARROW["bfloat16"][1]
    mixers = [i for i in plan.instructions if i.op == "segment_attention"]
    given = {name: {plan.buffer(i.inputs[name]).dtype for i in mixers} for name in mixers[0].inputs}
    assert {name for name, dtypes in given.items() if dtypes == {"bfloat16"}} == {*"qkv"}
    assert {name for name, dtypes in given.items() if dtypes == {"float32"}} == {
        "q_bias", "k_bias", "buckets",
    }  # fmt: skip
    products = [i for i in plan.instructions if i.op == "head_linear"]
    assert {plan.buffer(i.inputs["weight"]).dtype for i in products} == {"bfloat16"}


def test_a_gpu_has_launches_for_biases_by_distance(tmp_path: Path) -> None:
    judge = KINDS["deberta v3"].build("Model")
    plan, _ = interpreted(with_modules(saved(judge, tmp_path)), TEXTS)
    placed = CUDA.place(CUDA.group(CUDA.rewrite(plan))[0])
    text = "".join(CUDA.sources(placed, target_named("cuda:sm_90")).values())
    assert "head_product.multiply_heads" in text and "K_BIAS_STRIDE" in text


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["deberta v3", "mpnet", "deberta even", "jina v3"])
def test_kernels_give_the_scores_of_transformers(kind: str, tmp_path: Path) -> None:
    """Of texts beside others, and alone to the bit, in either order."""
    judge = KINDS[kind].build("ForSequenceClassification")
    texts = [*TEXTS, [(i * 31 + 7) % 2000 + 2 for i in range(61)]]
    wanted = torch.stack([rows(judge, text) for text in texts]).softmax(-1).numpy()
    folder = saved(judge, tmp_path / "m")
    ingot.compile(folder, tmp_path / "out", max_num_batched_tokens=128, dtype="float32")
    with ingot.Classifier(tmp_path / "out") as model:
        got = model.classify(texts)
        assert np.array_equal(model.classify(texts[::-1])[::-1], got)
        assert all(
            np.array_equal(model.classify([t])[0], p) for t, p in zip(texts, got, strict=True)
        )
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < MOST


@pytest.mark.parametrize(
    ("kind", "part"), [("mpnet", "mpnet"), ("deberta v3", "deberta"), ("jina v3", "roberta")]
)
def test_a_head_of_another_task_is_left_out(kind: str, part: str, tmp_path: Path) -> None:
    """And a part that it stands upon has a name before all of its own."""
    judge = KINDS[kind].build("ForMaskedLM")
    wanted = torch.stack([rows(getattr(judge, part), text).mean(0) for text in TEXTS])
    _, got = interpreted(saved(judge, tmp_path), TEXTS)
    assert error(got, wanted) < MOST


def test_jina_by_the_names_of_transformers(tmp_path: Path) -> None:
    judge = KINDS["jina v3"].build("Model")
    wanted = torch.stack([rows(judge, text).mean(0) for text in TEXTS])
    folder = saved(judge, tmp_path)
    published = {*load_file(folder / "model.safetensors")}
    save_file({**judge.state_dict()}, folder / "model.safetensors")
    assert not published & {name for name in judge.state_dict() if "self_attn" in name}
    _, got = interpreted(folder, TEXTS)
    assert error(got, wanted) < MOST


@pytest.mark.parametrize("kind", ["mpnet", "deberta v3", "jina v3"])
def test_tensors_that_are_missing_or_unknown_are_named(kind: str, tmp_path: Path) -> None:
    folder = saved(KINDS[kind].build("Model"), tmp_path)
    path = folder / "model.safetensors"
    stored = load_file(path)
    wrong = next(name for name in sorted(stored) if name.startswith("encoder.layer"))
    save_file({n: x for n, x in stored.items() if n != wrong} | {"odd": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=re.escape(f"lacks {wrong}; has tensors")):
        interpreted(folder, TEXTS)


@cache
def judge() -> object:
    return KINDS["bert"].build("Model")


@pytest.fixture(scope="module")
def embedder(embedder_artifact: Path) -> Iterator[ingot.Embedder]:
    with ingot.Embedder(embedder_artifact) as embedder:
        yield embedder


def wanted(texts: list[list[int]]) -> np.ndarray:
    pooled = torch.stack([rows(judge(), text).mean(0) for text in texts])
    return torch.nn.functional.normalize(pooled).numpy()


def test_kernels_give_the_vectors_of_transformers(embedder: ingot.Embedder) -> None:
    got = embedder.encode(TEXTS)
    assert np.linalg.norm(got - wanted(TEXTS)) / np.linalg.norm(wanted(TEXTS)) < MOST


def test_bits_depend_on_no_company_order_or_batch(embedder: ingot.Embedder) -> None:
    texts = [[(i * 7 + n) % 2048 for i in range(n)] for n in (1, 2, 31, 64, 3, 17, 64, 5, 9, 40, 8)]
    alone = [embedder.encode([text])[0] for text in texts]
    for given, size in ((texts, 256), (texts[::-1], 256), (texts, 1), (texts * 3, 7)):
        found = embedder.encode(given, batch_size=size)
        again = {len(text): row for text, row in zip(given, found, strict=True)}
        assert all(
            again[len(t)].tobytes() == row.tobytes() for t, row in zip(texts, alone, strict=True)
        )


def test_callers_share_steps_and_get_their_own_rows(embedder: ingot.Embedder) -> None:
    texts = [[(i * 3 + n) % 2048 for i in range(1 + n % 40)] for n in range(64)]
    alone = [embedder.encode([text])[0] for text in texts]
    with ThreadPoolExecutor(16) as pool:
        found = [*pool.map(lambda text: embedder.encode([text])[0], texts)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(alone, found, strict=True))


def test_a_prompt_stands_before_a_text(embedder: ingot.Embedder) -> None:
    with_prompt = embedder.encode("or not", prompt_name="query")
    assert np.array_equal(with_prompt, embedder.encode("To be or not"))
    with pytest.raises(RequestError, match="prompt_name is 'other'"):
        embedder.encode("or not", prompt_name="other")


def test_similarity_is_the_cosine(embedder: ingot.Embedder) -> None:
    one, other = embedder.encode(TEXTS[:2]), embedder.encode(TEXTS[1:])
    found = embedder.similarity(one, other)
    assert found.shape == (2, 2) and abs(found[1, 0] - 1) < 1e-6
    assert np.allclose(found, one @ other.T, atol=1e-6)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([[1] * 65], "text 0 has 65 tokens, and the model takes 64"),
        ([[1], []], "text 1 has no token"),
        ([[1], [2048]], "token 2048"),
        ([[1], [-1]], "token -1"),
        ([[1], 7], "text 1 is 7"),
        ([[1], [1.5]], r"text 1 is \[1.5\]"),
        (["a\ud800"], "surrogate"),
    ],
)
def test_texts_that_cannot_be_run(embedder: ingot.Embedder, texts: list, message: str) -> None:
    with pytest.raises(IngotError, match=message):
        embedder.encode(texts)


def test_truncation_leaves_out_the_end(embedder: ingot.Embedder) -> None:
    text = "To be, or not to be, that is the question: " * 20
    with pytest.raises(RequestError, match="tokens, and the model takes 64"):
        embedder.encode(text)
    with ingot.Embedder(embedder.artifact.path, truncate=True) as cutting:
        tokens = embedder.tokenizer.encode(text)[:64]
        assert np.array_equal(cutting.encode(text), embedder.encode([tokens])[0])


def test_vectors_are_cut_only_where_the_model_was_trained_for_it(embedder: ingot.Embedder) -> None:
    with pytest.raises(RequestError, match="dimensions is 8"):
        embedder.encode("a", truncate_dim=8)
    assert embedder.encode("a", truncate_dim=60).shape == (60,)


def test_an_embedder_does_not_generate(embedder: ingot.Embedder) -> None:
    with (
        ingot.LLM(embedder.artifact.path) as llm,
        pytest.raises(UsageError, match="generates none"),
    ):
        llm.generate("To be")
    with pytest.raises(UsageError, match="makes vectors of texts"):
        ingot.Classifier(embedder.artifact.path)


def test_a_reranker_ranks(reranker_artifact: Path) -> None:
    judge = KINDS["bert"].build("ForSequenceClassification", 1)
    query, documents = "To be", ["or not", "the question", "a rose"]
    with ingot.Classifier(reranker_artifact) as model:
        pairs = [model.tokenizer.backend.encode(query, document) for document in documents]
        scores = [rows(judge, p.ids, token_type_ids=torch.tensor([p.type_ids])) for p in pairs]
        wanted = torch.sigmoid(torch.cat(scores)).numpy()
        assert np.allclose(model.predict([(query, d) for d in documents]), wanted, atol=1e-5)
        ranked = model.rank(query, documents)
    assert [each["corpus_id"] for each in ranked] == np.argsort(-wanted).tolist()


def test_a_pair_beyond_a_step_is_refused_by_the_encoder(embedder: ingot.Embedder) -> None:
    encoder = TextEncoder(embedder.artifact)
    with pytest.raises(RequestError, match="a text of 65 tokens"):
        encoder.run([EncodedText([1] * 65)])
    encoder.close()


def test_a_step_has_no_more_texts_than_there_is_room_for(embedder: ingot.Embedder) -> None:
    texts = [[i] for i in range(20)]  # 20 of the 64 tokens of a step, and more than its 8 texts
    alone = [embedder.encode([text])[0] for text in texts]
    assert np.array_equal(embedder.encode(texts), alone)


def test_texts_that_nobody_waits_for_are_not_run(embedder: ingot.Embedder) -> None:
    encoder, texts = TextEncoder(embedder.artifact), [EncodedText([5, 6])]
    with pytest.raises(RequestError, match="nobody waits"):
        encoder.run(texts, lambda: True)
    assert encoder.counters().num_steps == 0
    assert encoder.run(texts).shape == (1, 60) and encoder.counters().num_steps == 1
    encoder.close()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("modules.json", [{"type": "x.models.WordWeights", "path": ""}], "a module 'WordWeights'"),
        ("modules.json", [{"type": "x.Dense"}, {"type": "x.Pooling"}], "has Dense before Pooling"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pools by 'median'"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", 7]}, "pools by 7"),
        ("1_Pooling/config.json", {"pooling_mode": []}, "pools by nothing"),
    ],
)
def test_modules_that_nothing_stands_for(
    tmp_path: Path, name: str, change: object, message: str
) -> None:
    folder = with_modules(saved(judge(), tmp_path))
    write(folder / name, change)
    with pytest.raises(UnsupportedModelError, match=message):
        registry.load_config(ModelDir.open(folder))


@pytest.mark.parametrize(
    ("file", "pooling"),
    [
        ({"pooling_mode": "weightedmean", "embedding_dimension": 60}, ["weighted_mean"]),
        ({"pooling_mode": ["lasttoken", "cls"]}, ["last", "first"]),
        ({"pooling_mode": "max", "pooling_mode_cls_token": True}, ["max"]),
        ({"pooling_mode_lasttoken": True, "pooling_mode_cls_token": True}, ["first", "last"]),
        ({"pooling_mode_cls_token": False}, ["mean"]),
        ({}, ["mean"]),
    ],
    ids=str,
)
def test_ways_to_pool_are_read_as_sentence_transformers_reads_them(
    tmp_path: Path, file: dict, pooling: list[str]
) -> None:
    folder = with_modules(saved(judge(), tmp_path))
    write(folder / "1_Pooling" / "config.json", file)
    config = registry.load_config(ModelDir.open(folder))
    assert config.head.pooling == tuple(pooling)


@pytest.fixture(scope="module")
def colbert_model() -> Iterator[ingot.Embedder]:
    with ingot.Embedder(colbert()) as model:
        yield model


def test_a_colbert_gives_a_vector_for_each_token(colbert_model: ingot.Embedder) -> None:
    folder = colbert().with_name("model")
    wanted = [projected(folder, rows(judge(), text)) for text in TEXTS]
    found = colbert_model.encode_tokens(TEXTS)
    assert [each.shape for each in found] == [(len(text), 7) for text in TEXTS]
    assert error(torch.tensor(np.concatenate(found)), torch.cat(wanted)) < MOST
    assert colbert_model.pooler.in_words == "a vector of 7 for each token, normalised"
    assert colbert_model.pooler.prompts == {"query": "[Q] ", "document": "[D] "}
    with pytest.raises(UsageError, match="makes vectors of the tokens"):
        colbert_model.encode(TEXTS)


def test_bits_of_tokens_depend_on_no_company(colbert_model: ingot.Embedder) -> None:
    texts = [[(i * 7 + n) % 2048 for i in range(n)] for n in (1, 31, 64, 3, 17, 9, 40, 8, 5)]
    alone = [colbert_model.encode_tokens([text])[0] for text in texts]
    for given, size in ((texts, 256), (texts[::-1], 3)):
        found = colbert_model.encode_tokens(given, batch_size=size)
        again = {len(each): each.tobytes() for each in found}
        assert again == {len(each): each.tobytes() for each in alone}


def test_an_embedder_gives_what_it_pools_where_it_was_compiled_for_that(
    wide: ingot.Embedder, embedder: ingot.Embedder
) -> None:
    """Callers of both programs share the queue."""
    wanted = torch.cat([rows(judge(), text) for text in TEXTS])
    with ThreadPoolExecutor(8) as pool:
        vectors = [pool.submit(wide.encode, TEXTS) for _ in range(4)]
        tokens = [pool.submit(wide.encode_tokens, TEXTS) for _ in range(4)]
    for each in tokens:
        assert error(torch.tensor(np.concatenate(each.result())), wanted) < MOST
    assert all(np.array_equal(each.result(), wide.encode(TEXTS)) for each in vectors)
    assert wide.pooler.in_words.endswith("; of 60 for each token")
    with pytest.raises(UsageError, match="--programs encode,tokens"):
        embedder.encode_tokens(TEXTS)


def test_texts_are_compared_token_by_token(colbert_model: ingot.Embedder) -> None:
    texts = ["To be", "or not to be", "that is the question"]
    vectors = colbert_model.encode_tokens(texts)
    wanted = [(vectors[0] @ each.T).max(1).sum() for each in vectors]
    with ingot.LLM(colbert()) as llm:
        scores = [each.outputs.score for each in llm.score(texts[0], texts)]
        assert np.allclose(scores, wanted, atol=1e-5)
        assert [each.index for each in llm.rerank(texts[0], texts)] == np.argsort(
            -np.array(wanted)
        ).tolist()
        found = llm.encode(texts, pooling_task="token_embed")
        assert all(
            np.array_equal(each.outputs.data, row) for each, row in zip(found, vectors, strict=True)
        )
        with pytest.raises(RequestError, match="task is 'embed'"):
            llm.encode(texts, pooling_task="embed")
        with pytest.raises(UsageError, match="made to token_embed"):
            llm.embed(texts)


def test_both_programs_are_replayed(wide: ingot.Embedder) -> None:
    expected = {
        wide.artifact.path: ["encode", "tokens"], colbert(): ["tokens"], tagger(): ["tokens"]
    }  # fmt: skip
    for path, programs in expected.items():
        found = replay(Artifact.open(path))
        assert [*found.programs] == programs
        assert all(each.passed for each in found.programs.values())


@pytest.fixture(scope="module")
def tagging_model() -> Iterator[ingot.Classifier]:
    with ingot.Classifier(tagger()) as model:
        yield model


def test_a_tagger_of_bert_s_first_code_is_read() -> None:
    """Its config.json has keys of heads that nothing reads."""
    keys = {
        "_num_labels": 7, "directionality": "bidi", "output_past": True, "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform", "id2label": {str(i): n for i, n in enumerate(TAGS)},
    }  # fmt: skip
    given = {**SIZES, "architectures": ["BertForTokenClassification"], "hidden_act": "gelu", **keys}
    config = registry.parse_config(given)
    assert config.head is not None and config.head.labels == TAGS and not config.head.pooling
    with pytest.raises(ConfigError, match="id2label must be a name for each number from 0 on"):
        registry.parse_config({**given, "id2label": {"0": "O", "2": "B-PER"}})


def test_a_tagger_labels_each_token(tagging_model: ingot.Classifier) -> None:
    judge = KINDS["bert"].build("ForTokenClassification", len(TAGS))
    logits = [rows(judge, text) for text in TEXTS]
    wanted = torch.cat(logits).softmax(-1)
    found = tagging_model.classify_tokens(TEXTS)
    assert [each.shape for each in found] == [(len(text), 7) for text in TEXTS]
    assert error(torch.tensor(np.concatenate(found)), wanted) < MOST
    assert error(torch.cat(logits), wanted) > 0.1
    alone = [tagging_model.classify_tokens([text])[0].tobytes() for text in TEXTS[::-1]]
    assert alone == [each.tobytes() for each in found[::-1]]
    assert tagging_model.pooler.in_words == "scores of 7 labels for each token"
    assert tagging_model.pooler.labels == TAGS and tagging_model.pooler.tokens == 7


def test_labels_of_tokens_are_not_those_of_texts(
    tagging_model: ingot.Classifier, embedder: ingot.Embedder, reranker_artifact: Path
) -> None:
    for ask in (tagging_model.classify, tagging_model.predict):
        with pytest.raises(UsageError, match="scores the tokens of texts"):
            ask(["To be"])
    with (
        ingot.Classifier(reranker_artifact) as model,
        pytest.raises(UsageError, match="scores texts"),
    ):
        model.classify_tokens("To be")
    with pytest.raises(UsageError, match="scores the tokens of texts"):
        ingot.Embedder(tagger())


def test_llm_labels_tokens(tagging_model: ingot.Classifier, embedder: ingot.Embedder) -> None:
    texts = ["To be", "or not to be"]
    wanted = tagging_model.classify_tokens(texts)
    with ingot.LLM(tagger()) as llm:
        for found in (llm.encode(texts), llm.encode(texts, pooling_task="token_classify")):
            assert [len(each.prompt_token_ids) for each in found] == [*map(len, wanted)]
            assert all(map(np.array_equal, [each.outputs.data for each in found], wanted))
        with pytest.raises(RequestError, match="task is 'classify'"):
            llm.encode(texts, pooling_task="classify")
        for ask in (llm.classify, llm.embed, lambda texts: llm.score(texts, texts)):
            with pytest.raises(UsageError, match="made to token_classify"):
                ask(texts)
        with pytest.raises(UsageError, match=r"Ask for encode\(\)"):
            llm.generate(texts)
    with (
        ingot.LLM(embedder.artifact.path) as llm,
        pytest.raises(RequestError, match="task is 'token_classify'"),
    ):
        llm.encode(texts, pooling_task="token_classify")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("2_Dense/config.json", {"use_residual": True}, "use_residual = True"),
        ("2_Dense/config.json", {"module_input_name": "other"}, "module_input_name = 'other'"),
    ],
)
def test_layers_of_tokens_that_nothing_stands_for(
    tmp_path: Path, file: str, change: dict, message: str
) -> None:
    folder = colbert_dir(tmp_path)
    write(folder / file, json.loads((folder / file).read_text()) | change)
    with pytest.raises(ConfigError, match=message):
        registry.load_config(ModelDir.open(folder))


@pytest.mark.parametrize(
    ("head", "programs"),
    [
        ("ForSequenceClassification", ["encode", "tokens"]),
        ("ForTokenClassification", ["encode"]),
        ("Model", ["tokens"]),
    ],
)
def test_programs_that_a_model_cannot_have(tmp_path: Path, head: str, programs: list[str]) -> None:
    folder = saved(KINDS["bert"].build(head), tmp_path / "m")
    with pytest.raises(UsageError, match="is to have the programs"):
        ingot.compile(folder, tmp_path / "out", programs=programs)


@pytest.mark.parametrize(
    ("kind", "strategy", "log1ps"),
    [
        ("bert", "max", 1),
        ("bert tanh", "sum", 2),
        ("roberta", "max", 2),
        ("distilbert", "sum", 1),
        ("modernbert", "max", 1),
        ("modernbert mean", "sum", 1),
    ],
)
def test_sparse_vectors_are_those_of_transformers(
    kind: str, strategy: str, log1ps: int, tmp_path: Path
) -> None:
    judge = KINDS[kind].build("ForMaskedLM")
    folder = splade_dir(tmp_path, kind, strategy, log1ps)
    wanted = torch.stack([weighed(rows(judge, text), strategy, log1ps) for text in TEXTS])
    _, got = interpreted(folder, TEXTS, verify=kind == "bert")
    assert error(got, wanted) < MOST
    assert 0.1 < (wanted == 0).float().mean() < 0.9


@pytest.fixture(scope="module")
def sparse_model() -> Iterator[ingot.Embedder]:
    with ingot.Embedder(splade()) as model:
        yield model


def test_kernels_give_sparse_vectors(sparse_model: ingot.Embedder) -> None:
    judge = KINDS["bert"].build("ForMaskedLM")
    wanted = torch.stack([weighed(rows(judge, text)) for text in TEXTS])
    dense = sparse_model.encode(TEXTS)
    assert dense.shape == (3, 2048) and error(torch.tensor(dense), wanted) < MOST
    found = sparse_model.encode_sparse(TEXTS)
    for vector, row in zip(found, dense, strict=True):
        assert np.array_equal(vector.indices, np.flatnonzero(row)) and len(vector.indices) < 2048
        assert np.array_equal(vector.values, row[vector.indices])
    assert sparse_model.encode_sparse(TEXTS[1:2])[0].values.tobytes() == found[1].values.tobytes()
    (few,) = sparse_model.encode_sparse(TEXTS[:1], max_active_dims=5)
    best = np.sort(np.argsort(-dense[0], kind="stable")[:5])
    assert few.indices.tolist() == best.tolist()
    spelled = sparse_model.decode(few, top_k=1)
    assert spelled == [(sparse_model.tokenizer.token(int(dense[0].argmax())), dense[0].max())]
    assert np.allclose(sparse_model.similarity(dense[:1], dense), dense[:1] @ dense.T)
    assert sparse_model.pooler.in_words == "weights of 2048 tokens, from the largest of all tokens"


def test_other_vectors_are_not_sparse(embedder: ingot.Embedder) -> None:
    with pytest.raises(UsageError, match="which are not sparse"):
        embedder.encode_sparse("a")


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (["Transformer", "SpladePooling", "Normalize"], "has Normalize behind SpladePooling"),
        (["Transformer", "Dense", "SpladePooling"], "has Dense before SpladePooling"),
        (["Transformer", "SparseAutoEncoder"], "a module 'SparseAutoEncoder'"),
    ],
)
def test_sparse_modules_that_nothing_stands_for(
    tmp_path: Path, modules: list[str], message: str
) -> None:
    folder = splade_dir(tmp_path)
    write(folder / "modules.json", [{"type": f"x.{each}", "path": "p"} for each in modules])
    with pytest.raises(UnsupportedModelError, match=message):
        registry.load_config(ModelDir.open(folder))


def test_a_splade_needs_scores_of_tokens(tmp_path: Path) -> None:
    folder = splade_dir(tmp_path)
    saved(judge(), folder)
    with pytest.raises(UnsupportedModelError, match="SpladePooling behind a BertModel"):
        registry.load_config(ModelDir.open(folder))


def test_llm_has_vllm_s_methods(
    embedder: ingot.Embedder, embedder_artifact: Path, reranker_artifact: Path
) -> None:
    texts = ["To be", "or not", "the question"]
    with ingot.LLM(embedder_artifact) as llm:
        found = [each.outputs.embedding for each in llm.embed(texts)]
        assert np.array_equal(np.array(found, np.float32), embedder.encode(texts))
        assert np.array_equal(llm.encode(texts)[1].outputs.data, embedder.encode(texts)[1])
        alike = embedder.similarity(embedder.encode(texts[0]), embedder.encode(texts))[0]
        scores = [each.outputs.score for each in llm.score(texts[0], texts)]
        assert np.allclose(scores, alike, atol=1e-6)
        assert [each.index for each in llm.rerank(texts[0], texts)] == np.argsort(-alike).tolist()
        with pytest.raises(UsageError, match="made to embed"):
            llm.classify(texts)
    with ingot.LLM(reranker_artifact) as llm, ingot.Classifier(reranker_artifact) as model:
        probs = [each.outputs.probs for each in llm.classify(texts)]
        assert np.array_equal(np.array(probs, np.float32), model.classify(texts))
        scores = [each.outputs.score for each in llm.score(texts[0], texts)]
        pairs = [(texts[0], text) for text in texts]
        assert np.array_equal(np.array(scores, np.float32), model.predict(pairs))


def test_a_model_that_generates_embeds_where_it_was_made_for_it() -> None:
    artifact = writer(embeds=True)
    judge = transformers.Qwen3ForCausalLM.from_pretrained(artifact.with_name("model")).eval()
    assert {*Artifact.open(artifact).target.programs} == {"step", "hidden"}
    with torch.no_grad():
        last = [judge.model(torch.tensor([t])).last_hidden_state[0, -1] for t in TEXTS]
    wanted = torch.nn.functional.normalize(torch.stack(last)).numpy()
    with ingot.Embedder(artifact) as embedder:
        got = embedder.encode(TEXTS)
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < MOST
    with ingot.LLM(artifact) as llm:
        found = llm.embed([{"prompt_token_ids": text} for text in TEXTS])
        assert np.array_equal(np.array([f.outputs.embedding for f in found], np.float32), got)
        found = llm.encode([{"prompt_token_ids": t} for t in TEXTS], pooling_task="token_embed")
        assert np.array_equal([each.outputs.data[-1] for each in found], got)
        assert [len(each.outputs.data) for each in found] == [*map(len, TEXTS)]
        assert llm.generate({"prompt_token_ids": [1, 2]})[0].outputs[0].token_ids


def as_published(judge: Any, folder: Path) -> Path:
    """A Nomic model under the names of its own code."""
    theirs = {
        "embeddings.LayerNorm": "emb_ln",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
        "self_attn.o_proj": "attn.out_proj",
        "mlp.gate_proj": "mlp.fc12",
        "mlp.up_proj": "mlp.fc11",
        "mlp.down_proj": "mlp.fc2",
    }
    state, tensors = judge.state_dict(), {}
    for name, tensor in state.items():
        for ours, their in theirs.items():
            name = name.replace(ours, their)
        tensors[re.sub(r"^layers", "encoder.layers", name)] = tensor
    for layer in range(judge.config.num_hidden_layers):
        parts = [tensors.pop(f"encoder.layers.{layer}.self_attn.{p}_proj.weight") for p in "qkv"]
        tensors[f"encoder.layers.{layer}.attn.Wqkv.weight"] = torch.cat(parts)
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors"
    )
    config = judge.config
    values = {
        "architectures": ["NomicBertModel"], "activation_function": "swiglu", "n_embd": 60,
        "n_head": 5, "n_inner": 92, "n_layer": 3, "n_positions": 64, "vocab_size": 2048,
        "layer_norm_epsilon": config.layer_norm_eps, "rotary_emb_base": 1000, "type_vocab_size": 2,
        "causal": False, "prenorm": False, "qkv_proj_bias": False, "rotary_emb_fraction": 1.0,
        "rotary_scaling_factor": None, "fused_bias_fc": True, "use_flash_attn": True,
    }  # fmt: skip
    write(folder / "config.json", values)
    return folder


def test_a_nomic_model_as_it_is_published(tmp_path: Path) -> None:
    judge = KINDS["nomic"].build("Model")
    wanted = torch.stack([rows(judge, text).mean(0) for text in TEXTS])
    _, got = interpreted(as_published(judge, saved(judge, tmp_path)), TEXTS)
    assert error(got, wanted) < MOST


def test_asyncio_has_the_same_methods(embedder: ingot.Embedder, embedder_artifact: Path) -> None:
    async def ask() -> Any:
        async with ingot.AsyncLLM(embedder_artifact) as llm:
            return await llm.embed(["To be"]), await llm.score("To be", ["To be", "or not"])

    (found,), scores = asyncio.run(ask())
    assert np.array_equal(np.array(found.outputs.embedding, np.float32), embedder.encode("To be"))
    assert scores[0].outputs.score == pytest.approx(1.0, abs=1e-6)


DECODER = {
    "vocab_size": 2048, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": 64, "num_labels": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config"),
    core(
        ("Qwen3", transformers.Qwen3Config(**DECODER, num_key_value_heads=2, head_dim=16)),
        further=[("GPTNeoX", transformers.GPTNeoXConfig(**DECODER))],
    ),
    ids=["qwen3", "gpt_neox"],
)
def test_a_decoder_that_labels_tokens(name: str, config: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    judge = getattr(transformers, f"{name}ForTokenClassification")(config).eval()
    for parameter in judge.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    found = [rows(judge, text) for text in TEXTS]
    plan, got = interpreted(saved(judge, tmp_path), TEXTS, program=TOKENS)
    assert error(got, torch.cat(found)) < MOST < error(got, torch.cat(found[::-1]))
    assert all(i.attrs["causal"] for i in plan.instructions if i.op == "segment_attention")


def test_a_decoder_with_a_head_for_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=2048, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, intermediate_size=96, max_position_embeddings=64,
        num_labels=3, pad_token_id=0,
    )  # fmt: skip
    judge = transformers.Qwen3ForSequenceClassification(config).eval()
    wanted = torch.stack([rows(judge, text) for text in TEXTS])
    plan, got = interpreted(saved(judge, tmp_path), TEXTS)
    assert error(got, wanted) < MOST
    assert all(i.attrs["causal"] for i in plan.instructions if i.op == "segment_attention")
    assert [i.attrs["how"] for i in plan.instructions if i.op == "pool"] == ["last"] * 2
