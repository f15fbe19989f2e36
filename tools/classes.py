"""Judges a class of `transformers`: whether `--from transformers` compiles it, and agrees with it.

A tiny random model of the class is saved as the library saves it, read and lowered as a compile
does it, and its plan is run by the references of the primitives.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.make_model import write_byte_tokenizer
from ingot.artifact.plan import Buffer
from ingot.compiler.interpret import new_states, plan_logits
from ingot.compiler.lower_model import lower_model
from ingot.compiler.model import read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.errors import IngotError, describe
from ingot.models.model_dir import ModelDir
from ingot.ops.steps import paged_step

VOCAB_SIZE = 320
WINDOW = 24
LENGTHS = (1, 2, 17, 40)  # of a page, past one, past the window
ALLOWED = 1e-4  # relative error of the logits in float32
AGREES = "agrees"
COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "sliding_window": WINDOW,
    "is_decoder": True,
    "pad_token_id": 0,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
# Sizes by the names that only some configs have.
OWN = {
    **dict.fromkeys(("d_model", "n_embd", "embedding_size", "word_embed_proj_dim"), 64),
    "hidden_size_global": 64,
    **dict.fromkeys(("ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "d_ff"), 96),
    **dict.fromkeys(("ffn_hidden_size", "hidden_dim"), 96),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "n_head"), 4),
    **dict.fromkeys(("num_heads", "num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 32),
    "mamba_d_ssm": 128,
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 16),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size"), 16),
    **dict.fromkeys(("n_groups", "mamba_n_groups", "mamba_ngroups"), 2),
    **dict.fromkeys(("n_positions", "max_seq_len", "max_target_positions"), 128),
    **dict.fromkeys(("q_lora_rank", "moe_intermediate_size"), 32),
    **dict.fromkeys(("kv_lora_rank", "v_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim", "hidden_size_per_layer_input"), 8),
    "qk_nope_head_dim": 24,
    "default_language": "en_XX",
    "encoder_hash_byte_group_vocab": 500,
    "num_kv_shared_layers": 0,
    "attention_types": [[["global", "local"], 1]],
    "attention_layers": ["global", "local"],
    "window_size": WINDOW,
    "shared_expert_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size_per_layer_input": VOCAB_SIZE,
}
# Sizes that follow from others where keys and values are made of one row of that rank.
LATENT = {"num_key_value_heads": 4, "head_dim": 8}
# Configs within a config that make a part of a text model.
PARTS = (
    *("text_config", "attn_config", "ffn_config"),
    *("patcher_config", "encoder_config", "decoder_config", "global_config"),
)
# What a config needs and no name says: kinds of layers, and sizes that must fit others.
ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
SPECIAL: dict[str, dict[str, Any]] = {
    "CohereCompassTextConfig": {"rope_parameters": {"full_attention": ROTARY}},
    "DbrxAttentionConfig": {"rope_theta": 10000.0, "clip_qkv": 8.0},
    "DbrxConfig": {"d_model": 64},
    "GraniteMoeHybridConfig": {"layer_types": ["linear_attention", "full_attention"]},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"]},
    "Mamba2Config": {"head_dim": 32},
    "Zamba2Config": {"layers_block_type": ["linear_attention", "hybrid"]},
    "ZambaConfig": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
    },
    "ZayaConfig": {"num_experts_per_tok": 1},
}
ASSISTANT = "drafts for another model: takes its hidden states and caches, no tokens alone"
CODEBOOKS = "makes sound: takes several tokens at a time, one of each codebook"
# Classes that are no model of text by themselves.
NO_TEXT = {
    "CsmDepthDecoderForCausalLM": "is a part of a model of sound: each place of the few in a "
    "sequence has a codebook and a head of its own",
    "Gemma4AssistantForCausalLM": ASSISTANT,
    "Gemma4UnifiedAssistantForCausalLM": ASSISTANT,
    "MusicgenForCausalLM": CODEBOOKS,
    "MusicgenMelodyForCausalLM": CODEBOOKS,
}


def class_names() -> list[str]:
    """Every class of a causal language model that `transformers` has."""
    names = (name for name in dir(transformers) if name.endswith("ForCausalLM"))
    return sorted(name for name in names if not name.startswith("Auto"))


def judge(name: str) -> str:
    """AGREES, or what stops the class, in a line."""
    if name in NO_TEXT:
        return NO_TEXT[name]
    made = getattr(transformers, name)
    try:
        model, prompts, expected = random_model(made)
    except Exception as fault:
        return f"no tiny model: {describe(fault).splitlines()[0]}"
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder), name)
        try:
            error = error_of(Path(folder), prompts, expected)
        except IngotError as fault:
            return fault.found.removeprefix(f"{name} ").splitlines()[0]
    return AGREES if error <= ALLOWED else "compiles, and gives other logits"


def tiny_config(made: type[Any]) -> Any:
    """A config of a class, with those of the sizes above that it knows."""
    kind = made.config_class
    return kind(**sizes_of(kind))


def sizes_of(kind: type[Any]) -> dict[str, Any]:
    """Those of the sizes above that a config knows, and those of configs within it."""
    renamed = getattr(kind, "attribute_map", {})
    default = kind().to_dict()
    known = {*default, *renamed}
    latent = LATENT if "kv_lora_rank" in known else {}
    sizes = {**OWN, **COMMON, **latent}
    given = {key: value for key, value in sizes.items() if key in known}
    # The same size under two names is given once.
    given = {k: v for k, v in given.items() if k not in renamed.values() or k in COMMON}
    nested = [name for name in PARTS if isinstance(default.get(name), dict)]
    inner = {name: sizes_of(type(getattr(kind(), name))) for name in nested}
    return {**given, **inner, **SPECIAL.get(kind.__name__, {})}


def random_model(made: type[Any]) -> tuple[Any, list[torch.Tensor], list[torch.Tensor]]:
    """A model of a class, prompts, and its logits for each."""
    torch.manual_seed(0)
    config = tiny_config(made)
    model = made._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    rng = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for _, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=rng)
            # A norm's weight stays about what it is; a matrix becomes random.
            parameter.copy_(parameter + 0.2 * noise if parameter.dim() < 2 else 0.1 * noise)
        prompts = [torch.randint(1, 250, (1, length), generator=rng) for length in LENGTHS]
        return model, prompts, [logits_of(model, prompt) for prompt in prompts]


def logits_of(model: Any, prompt: torch.Tensor) -> torch.Tensor:
    """[T, V]; some classes have a cache of their own, or none."""
    own = inspect.signature(type(model).forward).parameters
    given = {"use_cache": False} if "use_cache" in own else {}
    return model(prompt, **given).logits[0].float()  # type: ignore[no-any-return]


def save(model: Any, folder: Path, name: str) -> None:
    """A model directory, as `transformers` writes it."""
    model.save_pretrained(folder)
    write_byte_tokenizer(folder, VOCAB_SIZE)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [name]}))


def error_of(folder: Path, prompts: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest relative error of the logits of a plan. Raises IngotError."""
    options = CompileOptions(library="transformers", dtype="float32", max_num_batched_tokens=64)
    model = read_model(ModelDir.open(folder), options, Clock(silent))
    with model.checkpoint as checkpoint:
        plan = lower_model(model, Clock(silent)).plan

        def weight(buffer: Buffer) -> torch.Tensor:
            return torch.cat([checkpoint.read(n) for n in buffer.sources or (buffer.name,)])

        errors = []
        for prompt, logits in zip(prompts, expected, strict=True):
            length = prompt.shape[1]
            rng = torch.Generator().manual_seed(2)
            step, pages = paged_step(rng, [(length, length)], plan.limits.page_size)
            step |= {"tokens": prompt[0].int(), "logit_rows": torch.arange(length)}
            got = plan_logits(plan, weight, step, new_states(plan, pages))
            errors.append(float((got - logits).norm() / logits.norm()))
    return max(errors)
