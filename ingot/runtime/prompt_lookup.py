"""Prompt lookup: what followed the last tokens of a sequence where they stood before."""

from __future__ import annotations

TRIES = 8  # of the earlier places, the latest ones that are looked at
MEMORY = 16  # tokens after which what was seen before them counts little
FIRST_CHANCE, FIRST_SEEN = 0.5, 2  # as if so many tokens had been judged


class PromptLookup:
    """Guesses the tokens that come next, and learns how often guesses are right.

    Of the places where the last tokens stood before, one counts where at least `shortest` of them
    agree. The one where most agree is taken, up to `longest`, and of equals the latest.

    A guess is judged when its tokens have come, whether a step has computed it or not. So what it
    is worth is known before anything is spent on it.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.sizes = self._shortest, self._longest = shortest, longest
        self._latest: dict[tuple[int, ...], int] = {}
        # By place, the earlier place with the same tokens in front of it; 0: none.
        self._earlier = [0] * shortest
        self._chances = [FIRST_CHANCE] * (longest + 1)
        self._num_judged = [FIRST_SEEN] * (longest + 1)
        self._guess: list[int] = []
        self._num_seen = self._num_equal = 0

    def guess(self, tokens: list[int], most: int) -> tuple[list[int], float]:
        """At most `most` tokens that may follow, and the chance of each if those before are right.

        `tokens` are those of the last call and what has come since.
        """
        if self._guess:
            self._judge(tokens)
        self._take_in(tokens)
        place, self._num_equal = self._find(tokens)
        self._guess, self._num_seen = _from(tokens, place, most) if place else [], len(tokens)
        return self._guess, self._chances[self._num_equal]

    def _judge(self, tokens: list[int]) -> None:
        equal = self._num_equal
        for guessed, token in zip(self._guess, tokens[self._num_seen :], strict=False):
            self._num_judged[equal] = judged = min(MEMORY, self._num_judged[equal] + 1)
            self._chances[equal] += ((guessed == token) - self._chances[equal]) / judged
            if guessed != token:
                break

    def _take_in(self, tokens: list[int]) -> None:
        """Notes every place that a token has come to since the last call."""
        size, latest = self._shortest, self._latest
        for place in range(len(self._earlier), len(tokens)):
            key = tuple(tokens[place - size : place])
            self._earlier.append(latest.get(key, 0))
            latest[key] = place

    def _find(self, tokens: list[int]) -> tuple[int, int]:
        """The best place, and how many tokens in front of it are the last ones; or 0, 0."""
        best = most = 0
        place = self._latest.get(tuple(tokens[-self._shortest :]), 0)
        for _ in range(TRIES):
            if not place or most == self._longest:
                break
            equal = self._count_equal(tokens, place)
            if equal > most:
                best, most = place, equal
            place = self._earlier[place]
        return best, most

    def _count_equal(self, tokens: list[int], place: int) -> int:
        count, far = self._shortest, len(tokens) - place
        while count < min(self._longest, place):
            before = place - count - 1
            if tokens[before] != tokens[before + far]:
                break
            count += 1
        return count


def _from(tokens: list[int], place: int, count: int) -> list[int]:
    """The tokens from a place on; at the end of the sequence it goes on as it did from there."""
    found, period = tokens[place : place + count], len(tokens) - place
    while len(found) < count:
        found.append(found[len(found) - period])
    return found
