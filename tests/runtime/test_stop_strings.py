from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingot.runtime.stop_strings import StopStrings

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
