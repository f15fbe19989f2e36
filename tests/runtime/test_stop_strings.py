from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingot.runtime.stop_strings import StopStrings
from ingot.runtime.tokenizer import Tokenizer
from tests.runtime import fake_tokenizer

TEXT = st.text(alphabet="abé", max_size=24)
STOPS = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=3)


def oracle(text, stops, include):
    """Looks after every character, as the definition says."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def pieces_of(text, cuts):
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(TEXT, STOPS, st.lists(st.integers(0, 30), max_size=6), st.booleans())
@example("aab", ["ab", "aab"], [1, 2], False)
@settings(max_examples=600, deadline=None)
def test_the_result_is_the_oracles_however_the_text_is_cut(text, stops, cuts, include):
    matcher = StopStrings(tuple(stops), include=include)
    out = ""
    for piece in pieces_of(text, cuts):
        out += matcher.push(piece)
        assert oracle(text, stops, include)[0].startswith(out)
        if matcher.found:
            break
    else:
        out += matcher.finish()
    assert (out, matcher.found) == oracle(text, stops, include)


def test_only_what_can_be_part_of_a_stop_string_is_held_back():
    matcher = StopStrings(("END",), include=False)
    assert matcher.push("a E") == "a "
    assert matcher.push("N") == ""
    assert matcher.push("X") == "ENX"
    assert matcher.push("EN") == ""
    assert matcher.finish() == "EN"


def test_without_stop_strings_nothing_is_held_back():
    assert StopStrings((), include=False).push("text") == "text"


def test_after_a_stop_string_nothing_comes():
    matcher = StopStrings(("b",), include=False)
    assert matcher.push("abc") == "a"
    assert matcher.push("more") == ""


def test_what_ends_while_unarmed_is_no_stop_string():
    matcher = StopStrings(("ab",), include=False)
    assert matcher.push("ab a", armed=False) == "ab "
    assert matcher.push("bc") == ""
    assert matcher.found == "ab"


def armed_oracle(text, stops, include, armed_from):
    """As `oracle`, but nothing that ends before a character counts."""
    for end in range(max(armed_from, 1), len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def test_ten_thousand_texts_of_tokens_stop_where_the_oracle_says():
    """Stop strings lie over the borders of tokens, and of the tokens of one character."""
    tokenizer = Tokenizer(fake_tokenizer.byte_level().to_str().encode())
    rng = random.Random(11)
    words = ["the", " lazy", " dog", "é", "世界", "🙂", "🙃", "ab", "a", "b", "\n", " "]
    hits = 0
    for _ in range(10_000):
        text = "".join(rng.choices(words, k=rng.randrange(1, 12)))
        ids = tokenizer.encode(text, add_special_tokens=False)
        if rng.random() < 0.2:
            ids += rng.choices(range(300), k=3)
        text = tokenizer.decode(ids)
        stops = tuple(some_stop(rng, text, words) for _ in range(rng.randrange(1, 5)))
        include, min_tokens = rng.random() < 0.5, rng.choice([0, 0, 0, 3])
        found, armed_from = run(tokenizer, ids, stops, include, min_tokens)
        assert found == armed_oracle(text, stops, include, armed_from), (text, stops)
        hits += found[1] is not None
    assert 3_000 < hits < 9_900  # both kinds are well covered


def some_stop(rng, text, words):
    if rng.random() < 0.3:
        return "".join(rng.choices(words, k=rng.randrange(1, 4)))
    start = rng.randrange(len(text))
    return text[start : start + rng.randrange(1, 6)]


def run(tokenizer, ids, stops, include, min_tokens):
    """Text and stop string as the engine finds them; and from where a stop string counts."""
    detokenizer, matcher = tokenizer.detokenizer(), StopStrings(stops, include=include)
    out, num_chars, armed_from = "", 0, 0
    for place, token in enumerate(ids, 1):
        piece = detokenizer.push(token)
        num_chars += len(piece)
        if place < min_tokens:
            armed_from = num_chars + 1
        out += matcher.push(piece, armed=place >= min_tokens)
        if matcher.found is not None:
            return (out, matcher.found), armed_from
    out += matcher.push(detokenizer.finish())
    if matcher.found is None:
        out += matcher.finish()
    return (out, matcher.found), armed_from


def test_a_search_token_by_token_would_miss_most():
    """The negative control: stop strings are looked for in each token's text alone."""
    tokenizer = Tokenizer(fake_tokenizer.byte_level().to_str().encode())
    ids = tokenizer.encode("lazy🙂dog", add_special_tokens=False)
    assert run(tokenizer, ids, ("y🙂d",), False, 0)[0] == ("laz", "y🙂d")
    assert not any("y🙂d" in tokenizer.decode([i]) for i in ids)
