"""Says how well the model expects a text: its perplexity, and the token that surprised it most."""

import math
import sys

import ingot

TEXT = "What light is that which breaks through yonder window, and what news from the king?"

with ingot.LLM(sys.argv[1]) as llm:
    params = ingot.SamplingParams(max_tokens=1, prompt_logprobs=0)
    (request,) = llm.generate([TEXT], params)
    tokens = request.prompt_token_ids
    # There is none for the first token, which nothing precedes.
    scored = list(zip(tokens, request.prompt_logprobs, strict=True))[1:]
    logprobs = [found[token].logprob for token, found in scored]
    print(f"perplexity {math.exp(-sum(logprobs) / len(logprobs)):.1f} over {len(logprobs)} tokens")
    worst = min(range(len(scored)), key=logprobs.__getitem__)
    text = llm.get_tokenizer().decode([scored[worst][0]])
    print(f"least expected: {text!r}, log-probability {logprobs[worst]:.1f}")
