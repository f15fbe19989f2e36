"""Searches a folder of texts by meaning: python search.py MODEL FOLDER QUERY

MODEL is one that makes vectors of texts: an artifact, a directory, or a name on the hub.
"""

import sys
from pathlib import Path

import ingot

model, folder, query = sys.argv[1:]
files = sorted(Path(folder).rglob("*.txt"))
passages = [
    (file, text) for file in files for text in file.read_text().split("\n\n") if text.strip()
]

with ingot.Embedder(model, truncate=True) as embedder:
    vectors = embedder.encode([text for _, text in passages])
    scores = embedder.similarity(embedder.encode([query]), vectors)[0]

for place in scores.argsort()[::-1][:5]:
    file, text = passages[place]
    print(f"{scores[place]:.3f}  {file.name}: {' '.join(text.split())[:80]}")
