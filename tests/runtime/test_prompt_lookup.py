from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingot.runtime.prompt_lookup import FIRST_CHANCE, MEMORY, TRIES, PromptLookup

FEW = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def guess_by_hand(tokens: list[int], shortest: int, longest: int, most: int) -> list[int]:
    """By the definition: what stands behind the latest of the longest runs that agree."""
    places = []
    for place in range(len(tokens) - 1, 0, -1):
        equal = 0
        while equal < min(longest, place) and tokens[place - 1 - equal] == tokens[-1 - equal]:
            equal += 1
        if equal >= shortest:
            places.append((equal, place))
    if not places:
        return []
    longest_run = max(equal for equal, _ in places[:TRIES])
    place = next(place for equal, place in places if equal == longest_run)
    coming = list(tokens)
    for offset in range(most):
        coming.append(coming[place + offset])
    return coming[len(tokens) :]


@given(FEW, st.integers(1, 3), st.integers(0, 3), st.integers(1, 6), st.data())
def test_a_guess_is_what_followed_the_last_tokens_before(tokens, shortest, more, most, data):
    """Whether they come one by one or many at once."""
    lookup, end = PromptLookup(shortest, shortest + more), 0
    while end < len(tokens):
        end = data.draw(st.integers(end + 1, len(tokens)))
        expected = guess_by_hand(tokens[:end], shortest, shortest + more, most)
        assert lookup.guess(tokens[:end], most)[0] == expected


def test_a_guess_goes_on_in_circles():
    assert PromptLookup(2, 4).guess([5, 1, 2, 3, 1, 2], 7)[0] == [3, 1, 2, 3, 1, 2, 3]
    assert PromptLookup(2, 4).guess([7, 7, 7], 4)[0] == [7, 7, 7, 7]


def test_the_chance_follows_what_became_of_guesses():
    right, wrong = PromptLookup(2, 2), PromptLookup(2, 2)
    tokens, other = [1, 2], [1, 2]
    assert right.guess(tokens, 1) == ([], FIRST_CHANCE)
    wrong.guess(other, 1)
    for number in range(8 * MEMORY):
        tokens += [1, 2]
        other += [100 + number, 1, 2]
        chance = right.guess(tokens, 3)[1]
        other_chance = wrong.guess(other, 3)[1]
    assert chance > 0.95 and other_chance < 0.05


def test_the_first_guesses_count_most():
    lookup, tokens, chances = PromptLookup(2, 2), [1, 2], []
    for number in range(4):
        tokens += [100 + number, 1, 2]
        chances.append(lookup.guess(tokens, 3)[1])
    assert chances[0] == FIRST_CHANCE and chances[2] <= FIRST_CHANCE / 2
    assert chances[1] - chances[2] > chances[2] - chances[3] > 0


def test_longer_runs_have_a_chance_of_their_own():
    lookup, tokens = PromptLookup(1, 3), [1, 2, 3, 4]
    for number in range(100):
        tokens += [1000 + number, 1, 2, 3]
        of_three = lookup.guess(tokens, 1)
        tokens += [4, 2000 + number, 3]
        of_one = lookup.guess(tokens, 1)
    assert of_three[0] == of_one[0] == [4]
    assert of_three[1] > 0.9 and of_one[1] < 0.1
