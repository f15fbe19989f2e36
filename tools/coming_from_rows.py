"""What users of other programs type, and what does the same here; `coming_from_page` shows it.

A cell of ours that begins with `ingot` is a command, and any other is Python. Both are run by
`tests/test_coming_from.py`, with these names: MODEL and MODEL_DIR are folders, `llm` is an open
`LLM`, `text` is a str, `token_ids` and `messages` are lists.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A line of a table; `ours` is empty where there is nothing, and `remark` says so."""

    theirs: str
    ours: str
    remark: str = ""


VLLM = (
    Row("vllm complete", "ingot run MODEL 'Once upon a time' --raw"),
    Row("vllm chat", "ingot run MODEL"),
    Row("vllm bench latency", "ingot bench MODEL --batch 8"),
    Row("vllm serve MODEL --port 8000", "ingot serve MODEL --port 8000",
        "The same API of OpenAI: see [serving](serving.md)."),
    Row("AsyncLLMEngine.from_engine_args(args)", "AsyncLLMEngine.from_engine_args(args)",
        "`shutdown()` closes it. `get_tokenizer()` is not awaited."),
    Row("LLM(...).llm_engine", "llm.counters()", "There is no LLMEngine to step by hand."),
    Row("StructuredOutputsParams(choice=[...])",
        "SamplingParams(structured_outputs=StructuredOutputsParams(choice=['yes', 'no']))",
        "See [structured outputs](structured_outputs.md)."),
    Row("vllm chat --url URL", "ingot chat --url http://127.0.0.1:8000"),
)  # fmt: skip

LLAMA_CPP = (
    Row("llama-cli -m FILE -p TEXT -n 64", "ingot run MODEL TEXT --max-tokens 64",
        "TEXT goes through the chat template, if there is one. "
        "MODEL may be FILE itself. See [GGUF files](models_and_cache.md#gguf-files)."),
    Row("llama-cli -m FILE -cnv", "ingot run MODEL", "`--system` and `--stop`, too."),
    Row("-hf OWNER/MODEL", "ingot run OWNER/MODEL TEXT",
        "OWNER/MODEL:Q8_0 is one of its GGUF files; with several, one has to be named."),
    Row("-no-cnv", "ingot run MODEL TEXT --raw", "The text is continued as it is."),
    Row("--chat-template-file FILE", "ingot run MODEL TEXT --chat-template ./FILE"),
    Row("--reasoning-budget 0", "ingot run MODEL TEXT --no-think"),
    Row("-c 4096", "ingot run MODEL TEXT --max-model-len 4096"),
    Row("--temp 0.8 --top-k 40 --top-p 0.9",
        "ingot run MODEL TEXT --temperature 0.8 --top-k 40 --top-p 0.9",
        "Unless given, they are the model's own, or else llama.cpp's."),
    Row("--min-p 0.05 --repeat-penalty 1.1",
        "ingot run MODEL TEXT --min-p 0.05 --repetition-penalty 1.1",
        "The penalty is for the whole text, and not for the last 64 tokens."),
    Row("-s 1", "ingot run MODEL TEXT --seed 1"),
    Row("-r STOP", "ingot run MODEL TEXT --stop STOP"),
    Row("-t 8", "ingot run MODEL TEXT --threads 8"),
    Row("-b 2048", "ingot compile MODEL_DIR --max-num-batched-tokens 2048"),
    Row("-np 4", "LLM(MODEL, max_num_seqs=4)"),
    Row("-ctk q8_0 -ctv q8_0", "ingot compile MODEL_DIR --kv-dtype int8"),
    Row("llama-quantize IN OUT Q4_0", "ingot compile MODEL_DIR --quantize int4"),
    Row("llama-quantize --imatrix FILE",
        "ingot compile MODEL_DIR --quantize int4 --calibrate TEXTFILE"),
    Row("llama-bench -m FILE -p 512 -r 5", "ingot bench MODEL --prompt 512 --rounds 5"),
    Row("llama-perplexity", "llm.generate(text, SamplingParams(max_tokens=1, prompt_logprobs=0))",
        "See [perplexity](#perplexity)."),
    Row("--no-mmap, --mlock", "", "Weights are always mapped."),
    Row("-ngl 99", "ingot run MODEL TEXT --device cuda",
        "All layers run on the GPU, or none."),
    Row("--json-schema SCHEMA", "SamplingParams(structured_outputs={'json': {'type': 'object'}})",
        "See [structured outputs](structured_outputs.md)."),
    Row("--grammar GRAMMAR",
        "SamplingParams(structured_outputs={'grammar': 'root ::= \"a\"'})",
        "GBNF and Lark."),
    Row("llama-server -m FILE -np 4", "ingot serve MODEL --max-num-seqs 4",
        "MODEL may be FILE itself. See [serving](serving.md)."),
)  # fmt: skip

OLLAMA = (
    Row("ollama run NAME", "ingot run MODEL", "Names are those of the hub."),
    Row("ollama pull NAME", "ingot pull OWNER/MODEL"),
    Row("ollama list", "ingot list"),
    Row("ollama rm NAME", "ingot rm OWNER/MODEL"),
    Row("ollama run NAME TEXT", "ingot run MODEL TEXT"),
    Row("ollama run NAME --verbose", "ingot run MODEL TEXT --stats"),
    Row("ollama run NAME --think=false", "ingot run MODEL TEXT --no-think"),
    Row("ollama run NAME --hidethinking", "ingot run MODEL TEXT --think=hide"),
    Row("ollama show NAME", "ingot inspect ARTIFACT",
        "`ingot explain MODEL_DIR` looks at a model directory."),
    Row("ollama create NAME -q q4_0", "ingot compile MODEL_DIR -o NAME.ingot --quantize int4"),
    Row("PARAMETER num_ctx 4096", "ingot run MODEL TEXT --max-model-len 4096"),
    Row("PARAMETER num_predict 128", "ingot run MODEL TEXT --max-tokens 128"),
    Row("PARAMETER temperature 0.8", "ingot run MODEL TEXT --temperature 0.8"),
    Row("PARAMETER repeat_penalty 1.1", "ingot run MODEL TEXT --repetition-penalty 1.1"),
    Row("PARAMETER stop STOP", "ingot run MODEL TEXT --stop STOP"),
    Row("SYSTEM TEXT", "ingot run MODEL --system TEXT"),
    Row("TEMPLATE", "llm.chat(messages, chat_template='{{ messages[0].content }}')",
        "A Jinja template; unless given, the model's own. On the command line: "
        "`--chat-template FILE`."),
    Row("OLLAMA_MODELS", "", "`INGOT_CACHE` is where compiled model directories lie."),
    Row("OLLAMA_NUM_PARALLEL=4", "LLM(MODEL, config=EngineConfig(max_num_seqs=4))"),
    Row("OLLAMA_MAX_QUEUE=512", "LLM(MODEL, config=EngineConfig(max_waiting=512))"),
    Row("ollama serve", "ingot serve MODEL",
        "It serves the models that it is given: see [serving](serving.md)."),
)  # fmt: skip

TRANSFORMERS = (
    Row("AutoModelForCausalLM.from_pretrained(MODEL_DIR)", "LLM(MODEL_DIR)"),
    Row("from_pretrained(..., dtype=torch.bfloat16)", "LLM(MODEL_DIR, dtype='bfloat16')"),
    Row("BitsAndBytesConfig(load_in_4bit=True)", "LLM(MODEL_DIR, quantization='int4')"),
    Row("AutoTokenizer.from_pretrained(MODEL_DIR)", "llm.get_tokenizer()"),
    Row("tokenizer(text).input_ids", "llm.get_tokenizer()(text).input_ids"),
    Row("tokenizer.apply_chat_template(messages, tokenize=False)",
        "llm.get_tokenizer().apply_chat_template(messages)",
        "The same bytes. `add_generation_prompt` is True unless given."),
    Row("do_sample=False, max_new_tokens=64",
        "llm.generate(text, SamplingParams(temperature=0, max_tokens=64))",
        "New text alone comes back."),
    Row("do_sample=True, temperature=0.8, top_k=50",
        "SamplingParams(temperature=0.8, top_k=50)"),
    Row("num_return_sequences=4", "SamplingParams(n=4)"),
    Row("min_new_tokens=8", "SamplingParams(min_tokens=8)"),
    Row("stop_strings=['STOP']", "SamplingParams(stop=['STOP'])"),
    Row("num_beams=4, max_new_tokens=8",
        "llm.beam_search(text, BeamSearchParams(beam_width=4, max_tokens=8))",
        "As in vLLM, the prompt counts in the length that `length_penalty` divides by."),
    Row("LogitsProcessorList([f])", "SamplingParams(logits_processors=[f])"),
    Row("set_seed(1)", "SamplingParams(seed=1)"),
    Row("TextIteratorStreamer", "llm.stream(text)"),
    Row("output_scores=True", "SamplingParams(logprobs=1)"),
    Row("model(input_ids).logits", "llm.logits(token_ids)"),
    Row("model.model(input_ids).last_hidden_state[0, -1]",
        "llm.embed(text, normalize=False)[0].outputs.embedding",
        "Of an artifact with the program `hidden`."),
    Row("past_key_values", "", "Equal beginnings of prompts are computed once by themselves."),
)  # fmt: skip
