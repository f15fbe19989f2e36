"""Speed of a running artifact, beside the limits measured between its runs."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ingot
from bench.cost import decode_cost, prefill_cost
from bench.limits import MachineLimits, measure

ROUNDS = 7
PROMPT_TOKENS = 512
NEW_TOKENS = 32


def main() -> None:
    """Prints medians over the rounds.

    Each round stands beside the limits measured right before and after it: what memory gives
    changes from second to second on a machine that is shared.
    """
    rounds = []
    with ingot.LLM(sys.argv[1]) as llm:
        plan = llm.artifact.plan
        decoded = decode_cost(plan, PROMPT_TOKENS + NEW_TOKENS // 2)
        moved = decoded.weight_bytes + decoded.kv_bytes
        flops = prefill_cost(plan, PROMPT_TOKENS).flops
        before = _limits()
        for _ in range(ROUNDS):
            prefill, steps = _times(llm)
            decode = statistics.median(steps)
            after = _limits()
            bandwidth = max(before.read_bytes_per_s, after.read_bytes_per_s)
            peak = max(before.bfloat16_flops_per_s, after.bfloat16_flops_per_s)
            before = after
            rounds.append(
                {
                    "bandwidth_gbs": bandwidth / 1e9,
                    "peak_gflops": peak / 1e9,
                    "decode_tps": 1 / decode,
                    "decode_gbs": moved / decode / 1e9,
                    "decode_share": moved / decode / bandwidth,
                    "prefill_tps": PROMPT_TOKENS / prefill,
                    "prefill_gflops": flops / prefill / 1e9,
                    "prefill_share": flops / prefill / peak,
                }
            )
    medians = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    print(json.dumps(medians))


def _limits() -> MachineLimits:
    return measure(len(os.sched_getaffinity(0)), tries=2)


def _times(llm: ingot.LLM) -> tuple[float, list[float]]:
    """Seconds to the first token of a prompt, and of every later one."""
    prompt = {"prompt_token_ids": [(37 * i) % 1000 for i in range(PROMPT_TOKENS)]}
    params = ingot.SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False
    )
    marks = [time.perf_counter()]
    marks += [time.perf_counter() for _ in llm.stream(prompt, params)]
    steps = [after - before for before, after in pairwise(marks)]
    return steps[0], steps[1:]


if __name__ == "__main__":
    main()
