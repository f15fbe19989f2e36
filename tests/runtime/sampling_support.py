"""Samplers without a model, and the exact distributions that they must follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ingot.artifact.host import host_flags
from ingot.runtime.devices.cpu_kernels import Kernels, ModelStruct
from ingot.runtime.devices.native_sampler import ROW, pack
from ingot.runtime.devices.sampler import Sampler
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import SamplingState
from ingot.targets.target import requires, target_named
from tests.targets.cpu.native import build_library, step_of

LEVELS = tuple(
    level
    for level in ("cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:portable")
    if set(requires(target_named(level))) <= host_flags()
)
BACKENDS = ("numpy", *LEVELS)


@dataclass
class Asked:
    """A sequence as the sampler sees it."""

    params: SamplingParams
    token_ids: list[int]
    num_prompt: int = 0
    key: int = 0
    seed: int = 0
    stop_ids: tuple[int, ...] | None = None
    sampling: SamplingState = field(init=False)

    def __post_init__(self) -> None:
        stop_ids = self.params.stop_token_ids if self.stop_ids is None else self.stop_ids
        self.sampling = SamplingState(self.params, stop_ids)


@cache
def code(level: str) -> bytes:
    """The kernels of a model that has no instructions."""
    return build_library(step_of(level, ""), level).read_bytes()


@cache
def kernels(level: str, threads: int = 1) -> Kernels:
    library = Kernels(code(level), level)
    library.open(ModelStruct(num_pages=0, num_threads=threads))
    opened.append(library)
    return library


opened: list[Kernels] = []


def close_kernels() -> None:
    """Other tests look at what this process has loaded."""
    while opened:
        opened.pop().close()
    kernels.cache_clear()


def sampler_of(backend: str, vocab_size: int, threads: int = 1) -> Sampler:
    return Sampler(vocab_size, None if backend == "numpy" else kernels(backend, threads))


def draw(backend: str, logits, params, token_ids=(), num_prompt=0, key=0, seed=0, stop_ids=None):
    """One draw; the row is left as it is."""
    asked = Asked(params, list(token_ids), num_prompt, key, seed, stop_ids)
    row = np.array(logits, np.float32)[None]
    return sampler_of(backend, row.shape[1]).sample(row, [asked])[0]


def draw_many(level: str, logits, asked: Asked, count: int, batch: int = 50_000):
    """How often each token is drawn at the positions 0..count, by the kernels alone."""
    state = asked.sampling
    state.advance(asked.token_ids, asked.num_prompt)
    place = np.array([0, asked.seed, asked.key, 0], np.uint64).tobytes()
    record = np.frombuffer(place + pack(state, logits.size), ROW)
    counts = np.zeros(logits.size, np.int64)
    for start in range(0, count, batch):
        rows = np.repeat(record, batch)
        copies = np.tile(logits, (batch if state.has_edits else 1, 1))
        stride = copies.strides[0] if state.has_edits else 0
        rows["logits"] = copies.ctypes.data + np.arange(batch) * stride
        rows["position"] = np.arange(start, start + batch)
        kernels(level).sample(rows.ctypes.data, batch, logits.size)
        assert not rows["status"].any()
        counts += np.bincount(rows["token"], minlength=logits.size)
    return counts


def exact(logits, params: SamplingParams, prompt=(), generated=()):
    """The definition in float64, by full sorts: the probability of every token."""
    z = edited(logits, params, prompt, generated)
    wide = z / params.temperature
    probs = np.exp(wide - wide.max())
    if params.top_k:
        probs[z < np.sort(z)[::-1][min(params.top_k, z.size) - 1]] = 0
    probs[probs < params.min_p * probs.max()] = 0
    probs /= probs.sum()
    if params.top_p < 1:
        order = np.argsort(-probs, kind="stable")
        before = np.concatenate([[0], np.cumsum(probs[order])[:-1]])
        probs[order[before >= params.top_p]] = 0
    return probs / probs.sum()


def edited(logits, params: SamplingParams, prompt=(), generated=()):
    z = np.asarray(logits, np.float64).copy()
    for token in range(z.size):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            z[token] = -np.inf
        z[token] += (params.logit_bias or {}).get(token, 0)
        if token in prompt or token in generated:
            r = params.repetition_penalty
            z[token] = z[token] / r if z[token] > 0 else z[token] * r
        times = list(generated).count(token)
        z[token] -= times * params.frequency_penalty + (times > 0) * params.presence_penalty
    return z


def chi_square_p(counts, expected) -> float:
    """P-value of the chi-square statistic, by Wilson and Hilferty; rare tokens are taken as one."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    rare = expected < 10
    if expected[rare].sum() >= 10:
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    else:
        counts, expected = counts[~rare], expected[~rare]
    freedom = max(len(expected) - 1, 1)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))
