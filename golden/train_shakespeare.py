"""Train the bundled model: a byte-level BPE tokenizer and a five-million-parameter Qwen3.

    python golden/train_shakespeare.py --text tinyshakespeare.txt --out golden/models/shakespeare \
        --steps 1900 --minutes 29 --seed 1337 --compile

The text is the public-domain "tiny Shakespeare" (1,115,394 bytes). Its last tenth is never trained
on: not by the tokenizer, not by the model. `quality.json` is measured there, on the weights as
saved (bfloat16) and run in float32. `--minutes` caps the run: the schedule shortens to fit.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional as F
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCAB_SIZE = 2048
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
MAX_CONTEXT = 1024
EVAL_CONTEXT = 512

# Roles become speakers that the text knows, so that a chat stays within what the model has read.
CHAT_TEMPLATE = (
    "<|endoftext|>"
    "{%- set speakers = {'user': 'First Citizen', 'assistant': 'Second Citizen'} -%}"
    "{%- for message in messages -%}"
    "{{- speakers.get(message.role, message.role | title) + ':\\n' + message.content + '\\n\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'Second Citizen:\\n' -}}{%- endif -%}"
)

# (share of the run, context length): short windows are cheap and teach most of it; the longer ones
# at the end teach the positions that only they reach.
CONTEXT_STAGES = ((0.70, 256), (0.92, 512), (1.00, MAX_CONTEXT))


def train_tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_CONTEXT,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(out, save_jinja_files=False)


def build_model() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=END_OF_TEXT_ID,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=END_OF_TEXT_ID,
        eos_token_id=END_OF_TEXT_ID,
        pad_token_id=END_OF_TEXT_ID,
        do_sample=True,
        temperature=0.8,
        top_p=0.95,
    )
    return model


def add_dropout(model: Qwen3ForCausalLM, rate: float) -> None:
    """Drop embeddings and branch outputs while training: Qwen3 has dropout in attention only."""

    def drop(module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        return F.dropout(output, rate, module.training)

    model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(drop)
        layer.mlp.down_proj.register_forward_hook(drop)


def encode_with_cuts(
    tokenizer: Tokenizer, text: str, cut_rate: float, rng: np.random.Generator
) -> list[int]:
    """Encode `text` cut at random characters, so that a word is not always the same tokens.

    It does what BPE dropout does against overfitting, but follows the seed; and it teaches the
    model to go on from a prompt that ends inside a word.
    """
    cuts = np.flatnonzero(rng.random(len(text)) < cut_rate).tolist()
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [i for piece in tokenizer.encode_batch_fast(pieces) for i in piece.ids]


def encode_exchanges(
    tokenizer: Tokenizer, text: str, num_tokens: int, rng: np.random.Generator
) -> list[int]:
    """Short dialogues, each closed by the end-of-text token: what a chat turn looks like."""
    speeches = text.split("\n\n")
    ids: list[int] = []
    while len(ids) < num_tokens:
        length = int(rng.choice([2, 2, 4]))
        start = int(rng.integers(len(speeches) - length))
        ids.append(END_OF_TEXT_ID)
        ids += tokenizer.encode("\n\n".join(speeches[start : start + length])).ids
    return ids


def windows(
    tokenizer: Tokenizer,
    text: str,
    context: int,
    args: argparse.Namespace,
    rng: np.random.Generator,
) -> np.ndarray:
    """One epoch, shuffled: the whole text from a random offset, and a tenth more of exchanges."""
    ids = encode_with_cuts(tokenizer, text, args.cut_rate, rng)
    ids = ids[int(rng.integers(context)) :]
    ids += encode_exchanges(tokenizer, text, len(ids) // 10, rng)
    num_windows = (len(ids) - 1) // context
    starts = rng.permutation(num_windows) * context
    return np.array([ids[s : s + context + 1] for s in starts], dtype=np.int64)


def batches(
    tokenizer: Tokenizer,
    text: str,
    context: int,
    args: argparse.Namespace,
    rng: np.random.Generator,
) -> Iterator[torch.Tensor]:
    size = args.batch_tokens // context
    while True:
        epoch = windows(tokenizer, text, context, args, rng)
        for i in range(0, len(epoch) - size + 1, size):
            yield torch.from_numpy(epoch[i : i + size])


def build_optimizers(model: Qwen3ForCausalLM, args: argparse.Namespace) -> list:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(
        matrices, lr=args.lr, weight_decay=args.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [
            {"params": [model.model.embed_tokens.weight], "weight_decay": args.weight_decay},
            {"params": norms, "weight_decay": 0.0},
        ],
        lr=args.lr,
        betas=(0.9, 0.95),
    )
    return [muon, adamw]


def learning_rate(progress: float, peak: float, warmup: float = 0.03) -> float:
    """Warm up, then fall along a cosine to nothing."""
    if progress < warmup:
        return peak * (progress + 1e-3) / (warmup + 1e-3)
    return peak * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def next_token_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


@torch.no_grad()
def held_out_nats(model: Qwen3ForCausalLM, ids: list[int]) -> float:
    """Mean negative log-likelihood per token; each token sees at least half a window before it."""
    stride = EVAL_CONTEXT // 2
    total = 0.0
    for start in range(0, len(ids) - 1, stride):
        window = torch.tensor([ids[max(0, start - stride) : start + stride + 1]])
        logits = model(input_ids=window[:, :-1], use_cache=False).logits[0]
        scored = min(stride, len(ids) - 1 - start)
        losses = F.cross_entropy(logits[-scored:], window[0, -scored:], reduction="sum")
        total += losses.item()
    return total / (len(ids) - 1)


def save_and_measure(
    model: Qwen3ForCausalLM,
    tokenizer: Tokenizer,
    held_out: str,
    steps: int,
    args: argparse.Namespace,
) -> dict[str, int | float]:
    """Save as bfloat16, load that back as float32, and measure what was saved."""
    saved = build_model().bfloat16()
    saved.load_state_dict(model.state_dict())
    saved.save_pretrained(args.out)
    loaded = Qwen3ForCausalLM.from_pretrained(args.out, dtype=torch.float32).eval()
    ids = tokenizer.encode(held_out).ids
    nats = held_out_nats(loaded, ids)
    num_bytes = len(held_out.encode())
    quality = {
        "perplexity_per_token": round(math.exp(nats), 4),
        "bits_per_byte": round(nats * (len(ids) - 1) / num_bytes / math.log(2), 4),
        "perplexity_per_byte": round(math.exp(nats * (len(ids) - 1) / num_bytes), 4),
        "held_out_tokens": len(ids),
        "held_out_bytes": num_bytes,
        "eval_context": EVAL_CONTEXT,
        "seed": args.seed,
        "steps": steps,
        "num_parameters": loaded.num_parameters(),
    }
    (args.out / "quality.json").write_text(json.dumps(quality, indent=2) + "\n")
    return quality


def train(
    model: Qwen3ForCausalLM,
    tokenizer: Tokenizer,
    text: str,
    held_out: str,
    args: argparse.Namespace,
) -> int:
    """Return the number of steps taken: `--steps`, or fewer when `--minutes` ran out."""
    rng = np.random.default_rng(args.seed)
    optimizers = build_optimizers(model, args)
    forward = torch.compile(model, dynamic=False) if args.compile else model
    streams = {c: batches(tokenizer, text, c, args, rng) for _, c in CONTEXT_STAGES}
    held_out_ids = tokenizer.encode(held_out).ids
    began, step, progress = time.monotonic(), 0, 0.0
    while progress < 1:
        context = next(c for share, c in CONTEXT_STAGES if progress < share)
        model.train()
        loss = next_token_loss(forward, next(streams[context]))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(progress, args.lr)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        minutes = (time.monotonic() - began) / 60
        progress = max(step / args.steps, minutes / args.minutes)
        if step % 25 == 0:
            print(
                f"step {step} context {context} loss {loss.item():.3f} {minutes:.1f} min",
                flush=True,
            )
        if step % args.eval_every == 0:
            nats = held_out_nats(model.eval(), held_out_ids)
            print(f"step {step} held-out {nats:.4f} nats/token", flush=True)
    return step


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1900)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.15)
    parser.add_argument("--cut-rate", type=float, default=0.02, help="cuts per character")
    parser.add_argument("--eval-every", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="faster steps, slower start")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    text = args.text.read_text(encoding="utf-8")
    split = int(len(text) * 0.9)
    text, held_out = text[:split], text[split:]
    tokenizer = train_tokenizer(text)
    save_tokenizer(tokenizer, args.out)
    model = build_model()
    add_dropout(model, args.dropout)
    steps = train(model, tokenizer, text, held_out, args)
    print(json.dumps(save_and_measure(model, tokenizer, held_out, steps, args), indent=2))


if __name__ == "__main__":
    main()
