"""What is left between bfloat16 and `transformers` in models with experts: picks of other experts
where two scores are nearly equal, and nothing else.

With the same picks, every token is as near as those of models without experts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import ingot
from tests.end_to_end.picks import Routers, by_token, with_picks_of
from tests.end_to_end.support import LIMITS, judge, judged_logits, random_tokens, relative_error
from tests.support.checkpoints import plain_module
from tests.support.tiny_models import save_random

LIMIT = LIMITS["bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "gptoss"])
def test_tokens_are_beyond_the_limit_by_their_picks_alone(name: str, tmp_path: Path) -> None:
    model_dir = save_random(name, tmp_path / "model", "bfloat16", tokenizer=True, experts=1.0)
    report = ingot.compile(model_dir, tmp_path / "a.ingot", max_model_len=312)
    tokens, module = random_tokens(300), plain_module(model_dir)
    with ingot.LLM(report.artifact) as llm:
        got = llm.logits(tokens)
    routers = Routers()
    first = routers.logits(module, tokens)
    near = [len(list(routers.others(token))) for token in range(len(tokens))]
    last = with_picks_of(got, module, tokens, LIMIT, routers)
    assert relative_error(first, judged_logits(judge(model_dir), tokens)) <= 1e-5
    assert (by_token(got, first) > LIMIT).any(), "no pick differs: this proves nothing"
    assert relative_error(got, last) <= LIMIT / 3
    assert (by_token(got, last) <= LIMIT).all()
    # Few are so near, so that other picks explain nothing by chance.
    num_picks = len(tokens) * len(routers.given)
    assert sum(near) < 0.1 * num_picks
    assert len(routers.nudges) < 0.02 * num_picks
