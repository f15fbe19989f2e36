from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ingot.errors import (
    IngotError,
    InternalError,
    RequestError,
    ResourceError,
    TokenizerError,
    UsageError,
)
from ingot.runtime.config import EngineConfig
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import NAN_TOKEN, PAGE_BYTES, greedy, logits, logprobs, write_fake
from tests.runtime.gate import Gate, is_idle

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
PROMPTS = [[1, 2, 3], [4] * 30, [9, 9]]


def tokens_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def test_generate_takes_every_form_of_prompt(llm):
    tokenizer = llm.get_tokenizer()
    text = "the lazy dog"
    ids = tokenizer.encode(text)
    assert ids[0] == 318  # <s>, as the tokenizer's post-processor adds it
    expected = greedy(ids, 10)
    for prompts in (text, [text], {"prompt": text}, [{"prompt_token_ids": ids}], ids, [ids]):
        assert tokens_of(llm.generate(prompts, GREEDY)) == [expected]
    assert tokens_of(llm.generate([np.array(ids)], GREEDY)) == [expected]
    both = llm.generate([text, {"prompt_token_ids": [5]}], GREEDY)
    assert [out.prompt for out in both] == [text, None]
    assert [out.prompt_token_ids for out in both] == [ids, [5]]
    assert llm.generate([]) == []


def test_outputs_come_in_the_order_of_the_prompts_with_vllms_names(llm):
    outputs = llm.generate(PROMPTS, GREEDY)
    assert tokens_of(outputs) == [greedy(p, 10) for p in PROMPTS]
    first = outputs[0]
    assert first.finished and first.outputs[0].finished()
    assert first.outputs[0].index == 0 and first.outputs[0].finish_reason == "length"
    assert first.outputs[0].text == llm.get_tokenizer().decode(first.outputs[0].token_ids)
    assert first.outputs[0].logprobs is first.outputs[0].cumulative_logprob is None
    assert len({out.request_id for out in outputs}) == 3


def test_each_prompt_can_have_its_own_params(llm):
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    assert [len(t) for t in tokens_of(llm.generate(PROMPTS, params))] == [1, 5, 3]
    for bad in (params[:2], [GREEDY, None, GREEDY], "greedy"):
        with pytest.raises(RequestError, match="sampling_params"):
            llm.generate(PROMPTS, bad)


def test_greedy_completions_of_a_prompt_are_equal(llm):
    (alone,) = llm.generate([PROMPTS[0]], GREEDY)[0].outputs
    params = SamplingParams(n=3, temperature=0, max_tokens=10, ignore_eos=True)
    found = llm.generate([PROMPTS[0]], params)[0].outputs
    assert [each.index for each in found] == [0, 1, 2]
    assert all(each.token_ids == alone.token_ids for each in found)


def test_a_prompt_is_read_without_a_new_token(llm):
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    prompt = PROMPTS[0] * llm.max_model_len
    for ids in (PROMPTS[0], prompt[: llm.max_model_len]):
        found = llm.generate([ids], params)[0]
        (out,) = found.outputs
        assert (out.text, out.token_ids, out.finish_reason) == ("", [], "length")
        expected = logprobs(ids)[:-1]
        for token, entries, row in zip(ids[1:], found.prompt_logprobs[1:], expected, strict=True):
            assert entries[token].logprob == pytest.approx(row[token], abs=1e-5)
        (delta,) = llm.stream(ids, params)
        assert (delta.text, delta.token_ids, delta.finish_reason) == ("", [], "length")
    assert llm.generate([PROMPTS[0]], SamplingParams(max_tokens=0))[0].outputs[0].token_ids == []
    with pytest.raises(RequestError, match="tokens"):
        llm.generate([prompt[: llm.max_model_len + 1]], params)


def test_logprobs_are_those_of_the_model(llm):
    out = llm.generate([PROMPTS[0]], SamplingParams(max_tokens=6, seed=3, logprobs=2))[0].outputs[0]
    expected = logprobs(PROMPTS[0] + out.token_ids)[2:-1]
    for token, entries, row in zip(out.token_ids, out.logprobs, expected, strict=True):
        assert entries[token].logprob == pytest.approx(row[token], abs=1e-5)
        assert set(np.argsort(-row)[:2].tolist()) <= set(entries)
        assert entries[token].decoded_token == llm.get_tokenizer().decode([token])
    total = sum(entries[t].logprob for t, entries in zip(out.token_ids, out.logprobs, strict=True))
    assert out.cumulative_logprob == pytest.approx(total)


@pytest.mark.parametrize("stop_at", range(1, 12))
def test_a_stop_string_cuts_the_text_as_a_search_would(llm, stop_at):
    long = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    text = llm.generate([[7, 8]], long)[0].outputs[0].text
    stop = text[stop_at : stop_at + 2]
    for include in (False, True):
        params = SamplingParams(
            temperature=0, max_tokens=30, stop=[stop, "no such text"], ignore_eos=True,
            include_stop_str_in_output=include,
        )  # fmt: skip
        out = llm.generate([[7, 8]], params)[0].outputs[0]
        end = text.index(stop) + (len(stop) if include else 0)
        assert out.text == text[:end]
        assert (out.finish_reason, out.stop_reason) == ("stop", stop)
        assert len(out.token_ids) < 30
        pieces = list(llm.stream([7, 8], params))
        assert "".join(piece.text for piece in pieces) == out.text
        assert [t for piece in pieces for t in piece.token_ids] == out.token_ids
    assert llm._engine.pages.num_free == llm._engine.pages.num_pages


def test_a_stop_string_with_the_last_token_is_a_stop(llm):
    text = llm.generate([[7, 8]], GREEDY)[0].outputs[0].text
    params = SamplingParams(temperature=0, max_tokens=10, stop=text[-1], ignore_eos=True)
    if text.index(text[-1]) == len(text) - 1:
        assert llm.generate([[7, 8]], params)[0].outputs[0].finish_reason == "stop"


def test_a_stop_tokens_text_is_left_out_unless_it_is_asked_for(llm):
    tokens = greedy([7, 8], 4)
    decode = llm.get_tokenizer().decode
    params = SamplingParams(temperature=0, stop_token_ids=[tokens[3]], ignore_eos=True)
    out = llm.generate([[7, 8]], params)[0].outputs[0]
    count = tokens.index(tokens[3]) + 1
    assert out.token_ids == tokens[:count] and out.stop_reason == tokens[3]
    assert out.text == decode(tokens[: count - 1])


def test_a_stream_gives_the_same_as_generate(llm):
    for prompt in PROMPTS:
        params = SamplingParams(seed=5, max_tokens=20, ignore_eos=True)
        whole = llm.generate([prompt], params)[0].outputs[0]
        pieces = list(llm.stream(prompt, params))
        assert "".join(piece.text for piece in pieces) == whole.text
        assert [t for piece in pieces for t in piece.token_ids] == whole.token_ids
        assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
        assert len(pieces) == 20


def test_closing_a_stream_early_aborts_the_request(llm):
    gate = Gate(at=3)
    params = replace(GREEDY, logits_processors=[gate])
    stream = llm.stream([1, 2], params)
    next(stream)
    stream.close()
    gate.open()
    assert stream.output().outputs[0].finish_reason == "abort"
    assert list(stream) == [] and is_idle(llm)
    gate = Gate()
    llm.stream([1, 2], replace(params, logits_processors=[gate]))  # lost at once
    gate.open()
    assert is_idle(llm) and llm.counters().num_aborted == 2


def test_a_stream_and_other_calls_can_take_turns(llm):
    stream = llm.stream([1, 2], GREEDY)
    got = list(next(stream).token_ids)
    assert tokens_of(llm.generate([[3]], GREEDY)) == [greedy([3], 10)]
    assert np.array_equal(llm.logits([1, 2, 3]), logits([1, 2, 3]))
    for piece in stream:
        got += piece.token_ids
    assert got == greedy([1, 2], 10)


def test_threads_share_a_model(llm):
    prompts = [[i, i + 1] for i in range(12)]
    results = {}

    def work(index):
        results[index] = tokens_of(llm.generate([prompts[index]], GREEDY))[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: greedy(p, 10) for i, p in enumerate(prompts)}
    assert is_idle(llm)


def test_chat_uses_the_models_template(llm):
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    out = llm.chat(messages, GREEDY)[0]
    assert out.prompt == "<s>[system]a[user]b[assistant]"
    assert out.prompt_token_ids.count(318) == 1
    both = llm.chat([messages, messages[1:]], GREEDY)
    assert [o.prompt for o in both] == [out.prompt, "<s>[user]b[assistant]"]
    own = llm.chat(messages, GREEDY, chat_template="{{ messages[1].content }}{{ x }}",
                   chat_template_kwargs={"x": 1})  # fmt: skip
    assert own[0].prompt == "b1"
    going_on = [*messages, {"role": "assistant", "content": "so far "}]
    out = llm.chat(going_on, GREEDY, add_generation_prompt=False, continue_final_message=True)[0]
    assert out.prompt == "<s>[system]a[user]b[assistant]so far "


def test_a_chat_tells_what_it_says(llm):
    """The prompt has begun to reason, as its template knows."""
    messages = [{"role": "user", "content": "b"}]
    (plain,) = llm.chat(messages, GREEDY)[0].outputs
    assert (plain.content, plain.reasoning, plain.tool_calls) == (plain.text, None, [])
    template = "{{ messages[0].content }}<think>{# </think> #}"
    (thinks,) = llm.chat(messages, GREEDY, chat_template=template)[0].outputs
    assert thinks.text.strip() and (thinks.content, thinks.reasoning) == ("", thinks.text.strip())
    bounded = llm.chat(
        [messages], [replace(GREEDY, max_tokens=40)], chat_template=template, max_thinking_tokens=0
    )  # fmt: skip
    (answers,) = bounded[0].outputs
    assert answers.text.startswith("\n</think>\n\n") and answers.reasoning is None
    assert answers.content == answers.text.removeprefix("\n</think>\n\n").lstrip()
    assert llm.generate([[5]], GREEDY)[0].outputs[0].content is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_thinking_tokens": 5}, "marks no reasoning"),
        ({"tools": [{"name": "add"}]}, r"tools\[0\] is"),
        ({"chat_template_kwargs": {"messages": []}}, "'messages', which is no variable"),
    ],
)
def test_a_chat_with_what_it_cannot_have_is_refused(llm, given, said):
    with pytest.raises(RequestError, match=said):
        llm.chat([{"role": "user", "content": "b"}], GREEDY, **given)
    assert is_idle(llm)


BAD_PROMPTS = [
    [[]], [""], [[1, 400]], [[-1]], [[1.5]], [["a"]], [None], 5, None, [{"prompt": 1}], [{}],
    [{"text": "a"}], [{"prompt": None}], [[True]], [[1] * 96], ["a" * 300], [b"abc"], ["\ud800"],
    [[[1]]], [{"prompt_token_ids": "abc"}],
]  # fmt: skip


@pytest.mark.parametrize("prompts", BAD_PROMPTS, ids=repr)
def test_a_bad_prompt_is_refused_and_nothing_runs(llm, prompts):
    if prompts == [""]:  # not empty: the tokenizer adds <s>
        assert llm.generate(prompts, GREEDY)[0].prompt_token_ids == [318]
        return
    with pytest.raises(ValueError) as info:
        llm.generate([[1], *prompts] if isinstance(prompts, list) else prompts, GREEDY)
    assert isinstance(info.value, RequestError)
    assert is_idle(llm)


BAD_MESSAGES = [
    [], None, "hi", [1], [{"content": "x"}], [{"role": 1}], [{"role": "user", "content": b"x"}],
]  # fmt: skip


@pytest.mark.parametrize("messages", BAD_MESSAGES, ids=repr)
def test_bad_messages_are_refused(llm, messages):
    with pytest.raises(RequestError):
        llm.chat(messages, GREEDY)


@pytest.mark.parametrize(
    "options",
    [
        {"max_model_len": 97}, {"max_model_len": 0}, {"max_model_len": 1.5}, {"seed": -1},
        {"kv_cache_bytes": 0}, {"kv_cache_bytes": "1G"}, {"num_threads": 0}, {"seed": True},
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(fake_artifact, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        LLM(fake_artifact, **options)


def test_a_shorter_limit_and_a_small_cache_work(fake_artifact):
    with LLM(fake_artifact, max_model_len=20, kv_cache_bytes=5 * PAGE_BYTES) as llm:
        assert tokens_of(llm.generate([[1] * 8, [2] * 8], GREEDY)) == [
            greedy([1] * 8, 10),
            greedy([2] * 8, 10),
        ]
        with pytest.raises(RequestError, match="max_model_len is 20"):
            llm.generate([[1] * 20], GREEDY)


def test_after_close_everything_is_an_error_and_closing_again_is_not(fake_artifact):
    llm = LLM(fake_artifact)
    stream = llm.stream([1], GREEDY)
    llm.close()
    llm.close()
    calls = (lambda: llm.generate([[1]]), lambda: llm.logits([1]), lambda: next(stream))
    for call in calls:
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_forgotten_model_is_closed(fake_artifact):
    llm = LLM(fake_artifact)
    assert "memfd:kernels.so" in Path("/proc/self/maps").read_text()
    del llm
    gc.collect()
    assert "memfd:kernels.so" not in Path("/proc/self/maps").read_text()


def test_a_compiled_model_is_unloaded(shakespeare_artifact):
    with LLM(shakespeare_artifact) as llm:
        llm.generate([[1, 2, 3]], GREEDY)
        assert "memfd:kernels.so" in Path("/proc/self/maps").read_text()
    assert "memfd:kernels.so" not in Path("/proc/self/maps").read_text()


def test_nobody_computes_logits_for_a_caller_who_has_left(llm, monkeypatch):
    """Ctrl-C ends the wait; steps that are left would only delay the end of the process."""
    jobs = []

    def interrupted(work):
        jobs.append(work)
        raise KeyboardInterrupt

    monkeypatch.setattr(llm._thread, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.logits([1, 2, 3])
    monkeypatch.setattr(type(llm._engine._executor), "submit", pytest.fail)
    (found,) = jobs[0]()
    assert found.shape[0] == 3


def test_no_signal_handler_is_touched(fake_artifact):
    import signal

    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    LLM(fake_artifact).close()
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_error_of_one_request_reaches_its_caller(llm):
    with pytest.raises(InternalError, match="not finite"):
        llm.generate([[NAN_TOKEN]], GREEDY)
    assert tokens_of(llm.generate([[1]], GREEDY)) == [greedy([1], 10)]


@pytest.mark.parametrize("at", ["executor", "third draw"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_fails_ends_the_requests_and_not_the_model(llm, monkeypatch, at, overlap):
    llm.config = EngineConfig(overlap=overlap)
    engine = llm._engine
    target, name = (engine._executor, "submit") if at == "executor" else (engine._drawing, "_take")
    original, calls = getattr(target, name), []

    def fails(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise SystemExit("no such thing")
        return original(*args, **kwargs)

    monkeypatch.setattr(target, name, fails)
    with pytest.raises(InternalError, match="SystemExit: no such thing"):
        llm.generate([[3], [4]], GREEDY)
    assert is_idle(llm)
    assert tokens_of(llm.generate([[3], [4]], GREEDY)) == [greedy([3], 10), greedy([4], 10)]


def test_without_a_tokenizer_tokens_still_work(tmp_path):
    with LLM(write_fake(tmp_path / "a.ingot", tokenizer=False)) as llm:
        with pytest.raises(TokenizerError, match="has no tokenizer"):
            llm.generate("text")
        with pytest.raises(TokenizerError):
            llm.generate([[1]], GREEDY)
        params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)
        out = llm.generate([[1]], params)[0].outputs[0]
        assert (out.token_ids, out.text) == (greedy([1], 10), "")


def test_every_error_of_a_request_is_an_ingot_error_and_a_value_error(llm):
    with pytest.raises(IngotError):
        llm.generate([[]])
    with pytest.raises(ValueError):
        llm.generate([[]])


class Unreadable(Exception):
    def __str__(self):
        raise ValueError("no text")


class Panic(BaseException):
    """As what the tokenizers library raises where its Rust code panics."""


def raises(error):
    def processor(generated, row):
        raise error

    return processor


@pytest.mark.parametrize(
    "error", [Unreadable(), SystemExit(3), Panic("at the disco"), ValueError()]
)
def test_whatever_a_processor_raises_ends_its_request_alone(llm, error):
    params = replace(GREEDY, logits_processors=[raises(error)])
    stream = llm.stream([7], GREEDY)
    with pytest.raises(
        RequestError, match=rf"logits_processors\[0\] raised {type(error).__name__}"
    ):
        llm.generate([[1], [2]], [params, GREEDY])
    assert [t for delta in stream for t in delta.token_ids] == greedy([7], 10)
    assert is_idle(llm) and llm.counters().num_failed == 1


@pytest.mark.parametrize("error", [Unreadable(), Panic("at the disco"), SystemExit(3)])
def test_tokens_that_no_text_can_be_made_of_end_their_request_alone(llm, monkeypatch, error):
    tokenizer, bad = llm.get_tokenizer(), greedy([3], 4)[2]
    backend = tokenizer.backend

    class Backend:
        def __getattr__(self, name):
            return getattr(backend, name)

        def decode(self, ids, **options):
            if bad in ids:
                raise error
            return backend.decode(ids, **options)

    monkeypatch.setattr(tokenizer, "backend", Backend())
    stream = llm.stream([7], replace(GREEDY, max_tokens=2))
    with pytest.raises(RequestError, match=f"cannot be turned into text: {type(error).__name__}"):
        llm.generate([[3]], GREEDY)
    assert [t for delta in stream for t in delta.token_ids] == greedy([7], 2)
    assert is_idle(llm)


def test_a_text_that_makes_the_tokenizer_panic_is_a_bad_prompt(llm, monkeypatch):
    class Backend:
        model = llm.get_tokenizer().backend.model

        def encode_batch_fast(self, texts, **options):
            raise Panic("at the disco")

    monkeypatch.setattr(llm.get_tokenizer(), "backend", Backend())
    with pytest.raises(RequestError, match="cannot be tokenized: Panic: at the disco"):
        llm.generate("the dog", GREEDY)


def test_numpy_scalars_are_numbers(fake_artifact):
    sizes = {"max_model_len": np.int64(40), "num_threads": np.int32(1), "seed": np.uint64(2**63)}
    config = EngineConfig(max_num_seqs=np.int64(2), overlap=np.bool_(True))
    with LLM(fake_artifact, config=config, kv_cache_bytes=np.int64(10**6), **sizes) as llm:
        params = SamplingParams(
            temperature=np.float32(0), max_tokens=np.int64(10), ignore_eos=np.bool_(True),
            stop_token_ids=[np.int64(3)], logit_bias={np.int32(4): np.float64(-1)},
            seed=np.int64(-1), logprobs=np.int16(1),
        )  # fmt: skip
        plain = SamplingParams(
            temperature=0, max_tokens=10, ignore_eos=True, stop_token_ids=[3],
            logit_bias={4: -1.0}, logprobs=1,
        )  # fmt: skip
        assert params == plain
        got = llm.generate([[1]], params, priority=np.int64(2))
        assert tokens_of(got) == tokens_of(llm.generate([[1]], plain))
        assert llm.logits([1, 2], chunk_tokens=np.int64(1)).shape == (2, 320)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "1", np.float32(1)])
def test_chunks_of_no_size_are_refused(llm, bad):
    with pytest.raises(UsageError, match="chunk_tokens"):
        llm.logits([1, 2, 3], chunk_tokens=bad)


def test_a_callback_that_cannot_be_called_is_refused(fake_artifact):
    with pytest.raises(UsageError, match="on_step is 5"):
        LLM(fake_artifact, on_step=5)


def test_a_budget_of_no_page_says_how_much_is_needed(fake_artifact):
    with pytest.raises(ResourceError) as info:
        LLM(fake_artifact, kv_cache_bytes=PAGE_BYTES - 1)
    assert info.value.hint == f"Pass kv_cache_bytes >= {24 * PAGE_BYTES}."


def test_the_folder_may_move_once_the_model_is_open(tmp_path):
    path = write_fake(tmp_path / "a.ingot")
    with LLM(path) as llm:
        path.rename(tmp_path / "b.ingot")
        out = llm.generate("the lazy dog", GREEDY)[0]
        chat = llm.chat([{"role": "user", "content": "b"}], GREEDY)[0]
    assert out.outputs[0].token_ids == greedy(out.prompt_token_ids, 10) and out.outputs[0].text
    assert chat.prompt == "<s>[user]b[assistant]"
