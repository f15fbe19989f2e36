"""From texts to the tokens that a model of whole texts reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers

from ingot.artifact.pooler import Pooler
from ingot.errors import RequestError
from ingot.runtime.encoder import EncodedText
from ingot.runtime.texts import TextTokens, count_unpooled
from ingot.runtime.tokenizer import Tokenizer
from tests.support.fake_engine import bundled_tokenizer

POOLER = Pooler(task="embed", pooling=("mean",), size=3, max_tokens=4)


@pytest.mark.parametrize(("longest", "most"), [(9, 4), (3, 3)])
def test_a_text_is_as_long_as_the_model_and_the_artifact_allow(longest: int, most: int) -> None:
    texts = TextTokens(bundled_tokenizer(), POOLER, longest=longest, truncate=False)
    assert texts.encode([[7] * most]) == [EncodedText([7] * most)]
    with pytest.raises(RequestError, match=f"text 1 has {most + 1} tokens, and .* takes {most}\n"):
        texts.encode([[7], [7] * (most + 1)])


@pytest.mark.parametrize(("include", "prompt", "count"), [(False, "a b ", 3), (True, "a b ", 0)])
def test_a_prompt_is_counted_without_the_token_that_ends_it(
    include: bool, prompt: str, count: int
) -> None:
    """Its first special token counts, as in sentence-transformers."""
    vocabulary = {"[CLS]": 0, "[SEP]": 1, "a": 2, "b": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "a"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens(["[CLS]", "[SEP]"])
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    tokenizer = Tokenizer(backend.to_str().encode())
    pooler = replace(POOLER, include_prompt=include, max_tokens=9)
    texts = TextTokens(tokenizer, pooler, longest=9, truncate=False)
    tokens = [0, 2, 3, 2, 1]
    found = texts.encode(["a", [2, 3]], prompt)
    assert found == [EncodedText(tokens, 0, count), EncodedText([2, 3])]


def test_a_token_that_joins_a_prompt_and_a_text_is_not_the_prompt_s() -> None:
    assert count_unpooled([1, 2, 9], [1, 2, 3]) == 2
    assert count_unpooled([1, 2, 9, 4], [1, 2, 3]) == 3
    assert count_unpooled([1, 2], [1, 2, 3]) == 2  # cut: nothing of the text is left
    assert count_unpooled([], []) == count_unpooled([1], []) == 0
