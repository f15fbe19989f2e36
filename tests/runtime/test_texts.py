"""From texts to the tokens that a model of whole texts reads."""

from __future__ import annotations

import pytest

from ingot.artifact.pooler import Pooler
from ingot.errors import RequestError
from ingot.runtime.encoder import EncodedText
from ingot.runtime.texts import TextTokens
from tests.support.fake_engine import bundled_tokenizer

POOLER = Pooler(task="embed", pooling="mean", size=3, max_tokens=4)


@pytest.mark.parametrize(("longest", "most"), [(9, 4), (3, 3)])
def test_a_text_is_as_long_as_the_model_and_the_artifact_allow(longest: int, most: int) -> None:
    texts = TextTokens(bundled_tokenizer(), POOLER, longest=longest, truncate=False)
    assert texts.encode([[7] * most]) == [EncodedText([7] * most)]
    with pytest.raises(RequestError, match=f"text 1 has {most + 1} tokens, and .* takes {most}\n"):
        texts.encode([[7], [7] * (most + 1)])
