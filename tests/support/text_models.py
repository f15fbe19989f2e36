"""Tiny models of whole texts with random weights, in the layout of their published files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from ingot.models.text_modules import FLAGS
from tests.support.made_once import made_once

BUNDLED = Path(__file__).parents[2] / "golden" / "models" / "shakespeare"
VOCAB = 2048
TAGS = ("O", *(f"{place}-{kind}" for kind in ("PER", "LOC", "ORG") for place in "BI"))
TEXTS = [[11, 700, 3, 42, 900], [5], [(i * 37) % VOCAB for i in range(40)]]
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 92,
    "max_position_embeddings": 64,
}
DISTIL = {
    "vocab_size": VOCAB, "dim": 60, "n_layers": 2, "n_heads": 3, "hidden_dim": 92,
    "max_position_embeddings": 64,
}  # fmt: skip
DEBERTA = {
    **SIZES, "num_attention_heads": 3, "relative_attention": True, "position_buckets": 16,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p",
    "max_relative_positions": -1, "position_biased_input": False, "layer_norm_eps": 1e-7,
}  # fmt: skip
LOCAL = {
    "local_attention": 9, "global_attn_every_n_layers": 3, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A family, as transformers names its classes: one for its rows, one that classifies."""

    config: Callable[..., Any]
    model: str
    sizes: dict[str, Any]

    def build(self, head: str, labels: int = 3) -> Any:
        """A model of random weights that no part of is zero."""
        torch.manual_seed(0)
        given = {"num_labels": labels} if head.endswith("Classification") else {}
        config = self.config(**self.sizes, **given)
        made = getattr(transformers, self.model + head)(config).eval()
        for parameter in made.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        for name, learned in made.state_dict().items():
            if name.endswith("layer_scalar"):  # a buffer, and 1
                learned += 0.1 * torch.randn_like(learned)
        return made


KINDS = {
    "bert": Kind(transformers.BertConfig, "Bert", {**SIZES, "hidden_act": "gelu"}),
    "bert tanh": Kind(
        transformers.BertConfig, "Bert", {**SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 0.1}
    ),
    "roberta": Kind(
        transformers.XLMRobertaConfig,
        "XLMRoberta",
        {**SIZES, "max_position_embeddings": 66, "type_vocab_size": 1},
    ),
    "distilbert": Kind(transformers.DistilBertConfig, "DistilBert", DISTIL),
    "nomic": Kind(
        transformers.NomicBertConfig, "NomicBert", {**SIZES, "max_position_embeddings": 64}
    ),
    # More tokens than distances have buckets of their own.
    "mpnet": Kind(
        transformers.MPNetConfig,
        "MPNet",
        {**SIZES, "max_position_embeddings": 202, "num_attention_heads": 3},
    ),
    "deberta v3": Kind(transformers.DebertaV2Config, "DebertaV2", DEBERTA),
    "deberta even": Kind(
        transformers.DebertaV2Config,
        "DebertaV2",
        {
            **DEBERTA,
            "position_buckets": -1,
            "max_relative_positions": 20,
            "share_att_key": False,
            "norm_rel_ebd": "none",
            "position_biased_input": True,
        },
    ),
    "deberta one way": Kind(
        transformers.DebertaV2Config, "DebertaV2", {**DEBERTA, "pos_att_type": ["p2c"]}
    ),
    "jina v3": Kind(transformers.JinaEmbeddingsV3Config, "JinaEmbeddingsV3", SIZES),
    "gemma3": Kind(
        transformers.Gemma3TextConfig,
        "Gemma3Text",
        {
            **SIZES,
            "head_dim": 12,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "sliding_window": 9,
            "use_bidirectional_attention": True,
            "query_pre_attn_scalar": 12,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    # Head sizes, thetas and a pair of heads of their own in the full layer; not all pairs turn.
    "embedding_gemma2": Kind(
        transformers.EmbeddingGemma2TextConfig,
        "EmbeddingGemma2Text",
        {
            **SIZES,
            "head_dim": 12,
            "global_head_dim": 20,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 28,
            "embedding_dim": 44,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1000.0,
                    "partial_rotary_factor": 0.5,
                },
            },
        },
    ),
    "modernbert": Kind(transformers.ModernBertConfig, "ModernBert", {**SIZES, **LOCAL}),
    "modernbert mean": Kind(
        transformers.ModernBertConfig,
        "ModernBert",
        {**SIZES, **LOCAL, "classifier_pooling": "mean", "norm_bias": True},
    ),
}


def saved(model: Any, folder: Path) -> Path:
    """A directory with a model, and the tokenizer of the bundled one without its chat template."""
    model.save_pretrained(folder)
    shutil.copy(BUNDLED / "tokenizer.json", folder / "tokenizer.json")
    config = json.loads((BUNDLED / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", {**config, "chat_template": None})
    return folder


def with_modules(
    folder: Path,
    *pooling: str,
    normalize: bool = True,
    dense: Sequence[int] = (),
    include_prompt: bool = True,
) -> Path:
    """Adds what sentence-transformers writes: a way to pool, Dense layers, and Normalize."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    kinds += [(f"{i}_Dense", "Dense") for i in range(2, 2 + len(dense))]
    kinds += [(f"{2 + len(dense)}_Normalize", "Normalize")] if normalize else []
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    write(folder / "modules.json", modules)
    pooling = pooling or ("mean",)
    pools = {flag: name in pooling for flag, name in FLAGS.items()}
    pools |= {"word_embedding_dimension": 60, "include_prompt": include_prompt}
    write(folder / "1_Pooling" / "config.json", pools)
    columns = 60 * len(pooling)
    for (path, _), size in zip(kinds[2:], dense, strict=False):
        activation = "torch.nn.modules.activation.Tanh"
        sizes = {"in_features": columns, "out_features": size, "bias": True}
        write(folder / path / "config.json", {**sizes, "activation_function": activation})
        torch.manual_seed(size)
        tensors = {
            "linear.weight": torch.randn(size, columns) / 8,
            "linear.bias": torch.randn(size),
        }
        save_file(tensors, folder / path / "model.safetensors")
        columns = size
    return folder


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def rows(model: Any, tokens: Sequence[int], **given: Any) -> Tensor:
    """What transformers gives for one text: rows [T, C], or logits [labels] of one that
    classifies."""
    with torch.no_grad():
        out = model(torch.tensor([list(tokens)]), **given)
    return out.logits[0] if "logits" in out else out.last_hidden_state[0]


# What sentence-transformers makes of rows [T, C], in the order of its flags.
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.amax(0),
    "mean": lambda rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / len(rows) ** 0.5,
    "weightedmean": lambda rows: weighted_mean(rows, 0),
    "lasttoken": lambda rows: rows[-1],
}


def weighted_mean(rows: Tensor, before: int) -> Tensor:
    """A mean in which each row counts as often as its place says, behind those before."""
    weights = torch.arange(before + 1, before + len(rows) + 1)[:, None]
    return (rows * weights).sum(0) / weights.sum()


def embedder() -> Path:
    """The artifact of a tiny BERT with prompts, whose vectors are means of length 1."""
    import ingot

    def make(place: Path) -> None:
        folder = with_modules(saved(KINDS["bert"].build("Model"), place / "model"))
        prompts = {"prompts": {"query": "To be "}, "similarity_fn_name": "cosine"}
        write(folder / "config_sentence_transformers.json", prompts)
        ingot.compile(folder, place / "out", max_num_batched_tokens=64, max_num_seqs=8)

    return made_once("embedder", make) / "out"


def wide_embedder() -> Path:
    """The artifact of a tiny BERT whose vectors are pooled in several ways, of all rows but those
    of a prompt."""
    import ingot

    def make(place: Path) -> None:
        model = saved(KINDS["bert"].build("Model"), place / "model")
        with_modules(model, *POOLS, normalize=False, include_prompt=False)
        write(model / "config_sentence_transformers.json", {"prompts": {"query": "To be "}})
        programs = ["encode", "tokens"]
        ingot.compile(
            model, place / "out", max_num_batched_tokens=64, max_num_seqs=8, programs=programs
        )

    return made_once("wide_embedder", make) / "out"


def writer(*, embeds: bool = False) -> Path:
    """The artifact of a tiny Qwen3 that writes, with hidden states, or as one that also embeds."""
    import ingot

    def make(place: Path) -> None:
        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, intermediate_size=96, max_position_embeddings=256,
            tie_word_embeddings=True,
        )  # fmt: skip
        model = saved(transformers.Qwen3ForCausalLM(config), place / "model")
        if embeds:
            with_modules(model, "lasttoken")
        programs = [] if embeds else ["hidden", "step"]
        ingot.compile(
            model, place / "out", dtype="float32", max_num_batched_tokens=48, programs=programs
        )

    return made_once(f"writer-{embeds}", make) / "out"


def without_prompt(rows: Tensor, unpooled: int) -> Tensor:
    """What the model of `wide_embedder` makes of rows [T, 60], of which so many are of a prompt."""
    kept = rows[unpooled:]
    made = {name: pool(kept) for name, pool in POOLS.items()}
    return torch.cat([*(made | {"weightedmean": weighted_mean(kept, unpooled)}).values()])


def colbert_dir(folder: Path) -> Path:
    """A tiny BERT with a Dense layer for each token and no Pooling, as PyLate writes it.

    It is as wide as `tagger` has labels, so that both have the same kernels, which are built once.
    """
    saved(KINDS["bert"].build("Model"), folder)
    with_modules(folder, dense=[len(TAGS)])
    modules = json.loads((folder / "modules.json").read_text())
    kept = [each for each in modules if each["path"] in ("", "2_Dense")]
    kept[1]["type"] = "pylate.models.Dense.Dense"
    write(folder / "modules.json", kept)
    identity = {"activation_function": "torch.nn.modules.linear.Identity", "use_residual": False}
    config = json.loads((folder / "2_Dense" / "config.json").read_text())
    write(folder / "2_Dense" / "config.json", config | identity)
    prefixes = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
    says = {"model_type": "ColBERT", "similarity_fn_name": "MaxSim", **prefixes}
    write(folder / "config_sentence_transformers.json", says)
    return folder


def splade_dir(folder: Path, kind: str = "bert", strategy: str = "max", log1ps: int = 1) -> Path:
    """A tiny model of masked words with a SpladePooling, as sentence-transformers writes it."""
    saved(KINDS[kind].build("ForMaskedLM"), folder)
    kinds = [("", "models.MLMTransformer"), ("1_SpladePooling", "models.SpladePooling")]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": path,
            "type": f"sentence_transformers.sparse_encoder.{each}",
        }
        for i, (path, each) in enumerate(kinds)
    ]
    write(folder / "modules.json", modules)
    activation = {1: "relu", 2: "log1p_relu"}[log1ps]
    says = {"pooling_strategy": strategy, "activation_function": activation}
    write(folder / "1_SpladePooling" / "config.json", {**says, "word_embedding_dimension": VOCAB})
    return folder


def weighed(logits: Tensor, strategy: str = "max", log1ps: int = 1) -> Tensor:
    """What such a model makes of logits [T, V]."""
    weights = logits.relu()
    for _ in range(log1ps):
        weights = weights.log1p()
    return weights.amax(0) if strategy == "max" else weights.sum(0)


def splade() -> Path:
    """The artifact of such a model."""
    import ingot

    def make(place: Path) -> None:
        folder = splade_dir(place / "model")
        write(folder / "config_sentence_transformers.json", {"prompts": {"query": "To be "}})
        ingot.compile(folder, place / "out", max_num_batched_tokens=64, max_num_seqs=8)

    return made_once("splade", make) / "out"


def projected(folder: Path, rows: Tensor) -> Tensor:
    """What such a model makes of rows [T, 60]."""
    layer = load_file(folder / "2_Dense" / "model.safetensors")
    made = rows @ layer["linear.weight"].T + layer["linear.bias"]
    return torch.nn.functional.normalize(made)


def colbert() -> Path:
    """The artifact of such a model."""
    import ingot

    def make(place: Path) -> None:
        folder = colbert_dir(place / "model")
        ingot.compile(folder, place / "out", max_num_batched_tokens=64, max_num_seqs=8)

    return made_once("colbert", make) / "out"


def tagger() -> Path:
    """The artifact of a tiny BERT that scores tokens by named labels."""
    import ingot

    def make(place: Path) -> None:
        folder = saved(KINDS["bert"].build("ForTokenClassification", len(TAGS)), place / "model")
        config = json.loads((folder / "config.json").read_text())
        names = {str(i): name for i, name in enumerate(TAGS)}
        write(folder / "config.json", {**config, "id2label": names})
        ingot.compile(folder, place / "out", max_num_batched_tokens=64, max_num_seqs=8)

    return made_once("tagger", make) / "out"


def reranker() -> Path:
    """The artifact of a tiny BERT that scores pairs of texts; tokens say which text they are of."""
    import ingot

    def make(place: Path) -> None:
        folder = saved(KINDS["bert"].build("ForSequenceClassification", 1), place / "model")
        config = json.loads((folder / "tokenizer_config.json").read_text())
        names = ["input_ids", "token_type_ids", "attention_mask"]
        write(folder / "tokenizer_config.json", {**config, "model_input_names": names})
        ingot.compile(folder, place / "out", max_num_batched_tokens=64, max_num_seqs=8)

    return made_once("reranker", make) / "out"
