"""Decodes of ingot beside those of `transformers`, with a static cache under torch.compile."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench.gpu.artifacts import RECIPES, made_model
from bench.gpu.results import Faults, Values
from bench.gpu.setting import Setting
from bench.gpu.speed import CONTEXT, Runner
from ingot.runtime.devices import open_executor

# Each batch is compiled anew, which takes many seconds: the most telling ones come first.
BATCHES = (1, 64, 8, 2, 16, 4, 32)
STEPS, ROUNDS = 32, 3
WARM_STEPS = 6  # torch.compile records its graphs in the first ones


def beside_transformers(
    setting: Setting,
    name: str,
    *,
    batches: Sequence[int] = BATCHES,
    context: int = CONTEXT,
    steps: int = STEPS,
) -> None:
    """Both decode in turn, in this process. Raises ImportError where there is no transformers."""
    model = load_model(made_model(RECIPES[name].model, setting.work))
    artifact = setting.artifact(name)
    longest = artifact.manifest.limits.max_model_len
    step = compiled(model)
    faults = Faults()
    with closing(Runner(open_executor(artifact, max_model_len=longest))) as runner:
        for batch in batches:
            with faults.of(f"decode of {batch}"):
                began = perf_counter()
                theirs = Theirs(model, step, batch, context, WARM_STEPS + ROUNDS * steps)
                theirs.run(WARM_STEPS)
                warm = perf_counter() - began
                rounds = []
                for _ in range(ROUNDS):
                    ours = sum(runner.decode(batch, context, steps)) / steps
                    rounds.append((ours, theirs.run(steps)))
                figures = {**compared(batch, rounds), "compile in s": round(warm, 1)}
                setting.report.note(decode={str(batch): figures})
    faults.raise_found()


def compared(batch: int, rounds: Sequence[tuple[float, float]]) -> Values:
    """Tokens per second of both, and how many times as fast ingot is: the median of the rounds.

    Args:
        rounds: seconds of a step, ingot's and theirs.
    """
    ours, theirs = (median(each) for each in zip(*rounds, strict=True))
    return {
        "ratio": median(b / a for a, b in rounds),
        "tokens_per_second": batch / ours,
        "transformers": batch / theirs,
    }


def load_model(folder: Path, device: str = "cuda") -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.to(device).eval()


def decode_step(model: Any) -> Callable[..., Any]:
    """A step of a decode: the next token of each sequence, on the device."""
    takes = inspect.signature(type(model.model).forward).parameters

    def step(tokens: Any, positions: Any, cache: Any) -> Any:
        more = {"cache_position": positions[0]} if "cache_position" in takes else {}
        out = model(tokens, position_ids=positions, past_key_values=cache, use_cache=True, **more)
        return out.logits[:, -1:].argmax(-1)

    return step


def compiled(model: Any) -> Callable[..., Any]:
    """`decode_step` as fast as torch.compile makes it, replayed as a CUDA graph."""
    import torch

    torch._dynamo.config.recompile_limit = 4 * len(BATCHES)
    return torch.compile(decode_step(model), mode="reduce-overhead", dynamic=False)


class Theirs:
    """Sequences of random tokens in a static cache, whose prompts are computed."""

    def __init__(
        self, model: Any, step: Callable[..., Any], batch: int, context: int, room: int
    ) -> None:
        import torch
        from transformers import StaticCache

        self._step, self._device = step, model.device
        self._cache = StaticCache(config=model.config, max_cache_len=context + room)
        rng = torch.Generator().manual_seed(batch)
        tokens = torch.randint(model.config.vocab_size, (batch, context), generator=rng)
        positions = torch.arange(context).expand(batch, context)
        with torch.inference_mode():
            self.tokens = decode_step(model)(
                tokens.to(self._device), positions.to(self._device), self._cache
            )
            self._positions = torch.full((batch, 1), context, device=self._device)

    def run(self, steps: int) -> float:
        """Seconds of a step, on average."""
        import torch

        self._wait()
        began = perf_counter()
        with torch.inference_mode():
            for _ in range(steps):
                torch.compiler.cudagraph_mark_step_begin()
                self.tokens = self._step(self.tokens, self._positions, self._cache).clone()
                self._positions += 1
        self._wait()
        return (perf_counter() - began) / steps

    def _wait(self) -> None:
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize()
