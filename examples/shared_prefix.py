"""Asks several questions about one long text. It is computed once; the others find it cached."""

import sys

import ingot

PLAY = "ROMEO:\nI would the night were longer than the day.\n\nJULIET:\nSo would not I.\n\n" * 8
SPEAKERS = ["ROMEO", "JULIET", "NURSE"]

with ingot.LLM(sys.argv[1]) as llm:
    params = ingot.SamplingParams(temperature=0, max_tokens=16)
    for speaker in SPEAKERS:
        (request,) = llm.generate([f"{PLAY}{speaker}:\n"], params)
        cached, whole = request.num_cached_tokens, len(request.prompt_token_ids)
        print(f"{speaker}: {cached} of {whole} tokens were cached")
