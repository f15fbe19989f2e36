"""Bad words against a brute-force search of everything that was generated."""

from __future__ import annotations

import random

import numpy as np

from ingot.runtime.bad_words import BadWords, spellings
from ingot.runtime.params import SamplingParams
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime import fake_tokenizer
from tests.runtime.sampling_support import Asked, sampler_of


def oracle(words, token_ids, num_prompt):
    """A token is banned if a word would then end the generated tokens."""
    generated = list(token_ids[num_prompt:])
    tokens = {word[-1] for word in words}
    return {
        token
        for token in tokens
        if any([*generated, token][-len(word) :] == list(word) for word in words)
    }


def test_ten_thousand_sequences_ban_what_the_oracle_bans():
    rng = random.Random(3)
    num_banned = 0
    for _ in range(10_000):
        words = [
            tuple(rng.choices(range(4), k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 5))
        ]
        token_ids = rng.choices(range(4), k=rng.randrange(0, 12))
        num_prompt = rng.randrange(len(token_ids) + 1)
        bad = BadWords(words)
        found = {*bad.always, *bad.completions(token_ids, num_prompt)}
        assert found == oracle(words, token_ids, num_prompt), (words, token_ids, num_prompt)
        num_banned += bool(found)
    assert 2_000 < num_banned < 9_900  # both kinds are well covered


def test_a_word_is_spelled_at_the_beginning_and_after_a_space():
    tokenizer = Tokenizer(fake_tokenizer.byte_level().to_str().encode())

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    assert spellings(["the"], encode) == (tuple(encode("the")), tuple(encode(" the")))
    # With a token of its own for the space, the second spelling only repeats the first.
    assert encode(" zz") == [*encode(" "), *encode("zz")]
    assert spellings(["zz"], encode) == (tuple(encode("zz")),)
    assert spellings([" lazy dog"], encode) == spellings(["lazy dog"], encode)
    assert len(spellings(["the", " the"], encode)) == 2


def test_a_model_that_wants_a_bad_word_never_writes_it():
    """Greedy decoding of a model whose every wish is the next token of a text."""
    tokenizer = Tokenizer(fake_tokenizer.byte_level().to_str().encode())
    text = "the quick 🙂🙃 fox, the lazy dog"
    wished = tokenizer.encode(text, add_special_tokens=False)

    def write(bad_words):
        params = SamplingParams(temperature=0, bad_words=bad_words)
        params = params.for_model(320, lambda t: tokenizer.encode(t, add_special_tokens=False))
        asked = Asked(params, [5], 1)
        sampler = sampler_of("numpy", 320)
        for token in wished:
            logits = np.zeros((1, 320), np.float32)
            logits[0, token] = 2.0
            logits[0, ord("z")] = 1.0  # the second choice
            asked.token_ids.append(sampler.sample(logits, [asked])[0].token)
        return tokenizer.decode(asked.token_ids[1:])

    assert write([]) == text
    for word in ("quick", "🙂🙃", "lazy dog", "the"):
        assert word in text and word not in write([word])
    assert write(["the lazy"]).startswith("the quick")
