"""The text that the curve of quality is measured on: of many kinds, and none of it calibrates.

The first texts are those on which a compile measures its quality; the others were written for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

from ingot.compiler.quality_text import ANSWER, QUESTION, TEXTS

WINDOW = 384  # tokens of a text that are read

CALIBRATING = "the text that a compile brings along (quantization/sample_text.py)"
MEASURING = {
    **TEXTS,
    "an answer": f"{QUESTION}\n\n{ANSWER}\n",
    "code": '''\
import heapq
from collections import defaultdict


class Graph:
    """A directed graph with weights on its edges."""

    def __init__(self):
        self.edges = defaultdict(dict)

    def add_edge(self, start, end, weight=1.0):
        if weight < 0:
            raise ValueError(f"the weight of {start} -> {end} is negative: {weight}")
        self.edges[start][end] = weight

    def shortest_path(self, start, goal):
        """Returns (length, nodes) of the shortest path, or None if there is none."""
        queue, seen = [(0.0, start, [start])], set()
        while queue:
            length, node, path = heapq.heappop(queue)
            if node == goal:
                return length, path
            if node in seen:
                continue
            seen.add(node)
            for neighbour, weight in self.edges[node].items():
                if neighbour not in seen:
                    heapq.heappush(queue, (length + weight, neighbour, path + [neighbour]))
        return None


if __name__ == "__main__":
    graph = Graph()
    for start, end, weight in [("a", "b", 4), ("a", "c", 1), ("c", "b", 2), ("b", "d", 5)]:
        graph.add_edge(start, end, weight)
    print(graph.shortest_path("a", "d"))
''',
    "a report": """\
The harbour authority published its figures for the third quarter on Tuesday. Between July and
September 1,412 ships called at the port, 3.8 per cent more than in the same months of last year.
The amount of cargo fell slightly, from 9.6 to 9.4 million tonnes, because fewer ships carried coal;
the number of containers rose by 11 per cent to 418,000. "We are handling more boxes with the same
number of cranes," said the director, Maria Holm, "and that will not go on for ever." She repeated
that the new terminal on the north bank, which was to open in spring, would be delayed until the end
of the year. The contractor had found wooden piles from the seventeenth century in the mud, and the
law requires that they be examined before they are removed.

The union of dock workers welcomed the figures, but called the delay "a very convenient one". Its
members have worked overtime since May. A spokesman said that talks about wages would begin on 4
October, and that a strike was not planned "at the moment". Shares of the operating company closed
2.1 per cent lower at 37.40.
""",
    "German prose": """\
Als der Zug endlich hielt, war es schon dunkel, und auf dem Bahnsteig stand niemand außer einem
alten Mann mit einer Laterne. Er fragte nicht, wer sie seien, sondern nahm wortlos den größeren der
beiden Koffer und ging voraus. Der Weg führte an der Kirche vorbei, dann über eine schmale Brücke,
unter der man das Wasser hörte, ohne es zu sehen. Im Haus brannte Licht. Die Tante hatte Suppe
gekocht und das Zimmer unter dem Dach geheizt, und sie tat so, als wären die Kinder erst gestern
abgereist und nicht vor sieben Jahren.
""",
    "a dialogue": """\
"You said it would be finished by Friday."

"I said it could be finished by Friday, if the wood came on Monday. The wood came this morning."

"And you could not have called?"

"I did call. Twice. The first time your son told me that you were in the bath, and the second time
he told me that he was not allowed to answer the telephone."

She looked at the door, which was leaning against the wall of the workshop with one hinge on it, and
then at the clock. "My mother arrives tomorrow at noon. She has not seen this house since my father
sold it to me, and she is going to walk through a hole."

The carpenter put down his pencil. "Does she like coffee?"

"What has that got to do with it?"

"If she likes coffee, she can sit in the kitchen until two. By two there will be a door."
""",
}


def sequences(tokenizer: Tokenizer, positions: int | None = None) -> dict[str, list[int]]:
    """The measuring texts as tokens, each as the tokenizer begins a text; up to so many positions
    in all, the first of each not counted."""
    found: dict[str, list[int]] = {}
    for name, text in MEASURING.items():
        left = WINDOW if positions is None else min(WINDOW, positions - scored(found) + 1)
        if left > 1:
            found[name] = tokenizer.encode(text, add_special_tokens=True).ids[:left]
    return found


def scored(texts: Mapping[str, Sequence[int]]) -> int:
    """Positions of texts that are scored: all but the first of each."""
    return sum(len(tokens) - 1 for tokens in texts.values())
