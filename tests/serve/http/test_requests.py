"""What requests may say: every field with wrong values, prompts of all forms, and errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from ingot.runtime.params import SamplingParams
from ingot.serve.http.app import build_app
from ingot.serve.openai.params import Terms, thinking_budget
from ingot.serve.openai.requests import ChatRequest, CompletionRequest, Sampling
from ingot.serve.requests.context import HttpSettings
from tests.support.asgi import Call, called
from tests.support.fake_engine import FACTS, FakeEngine, FakeModels, says

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GIVEN = {TEXT: {"prompt": "Hi"}, CHAT: {"messages": [{"role": "user", "content": "Hi"}]}}


def answer(
    fields: Any, path: str = TEXT, settings: HttpSettings | None = None
) -> tuple[Call, FakeEngine]:
    """The answer to a request, and the engine that was asked."""
    engine = FakeEngine(says("a", "b"))
    app = build_app(FakeModels(bard=engine), settings)
    return asyncio.run(called(app, "POST", path, fields)), engine


def refused(fields: Any, path: str = TEXT) -> dict[str, Any]:
    """The error that a request gets; no engine may have been asked."""
    call, engine = answer(fields, path)
    assert call.status == 400, call.body
    assert call.headers["content-type"] == "application/json"
    assert engine.jobs == []
    error: dict[str, Any] = call.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


# The matrix of values that no field may choke on.
ODD: list[Any] = [
    None, "", "x", [], {}, [None], -1, 0, 1, -0.0, 0.5, 1e308, 2**31, 2**63, 2**64, -(2**63) - 1,
    True, False, ["x"] * 2000, "x" * 100_000, {"x": {"y": []}},
]  # fmt: skip
FIELDS = sorted({*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__} - {"model"})


@pytest.mark.cases(core=20)
@pytest.mark.parametrize("field", FIELDS)
def test_any_value_is_taken_or_refused_by_the_name_of_its_field(field: str) -> None:
    async def run() -> None:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        for path, kind in ((TEXT, CompletionRequest), (CHAT, ChatRequest)):
            if field not in kind.__struct_fields__:
                continue
            for value in ODD:
                call = await called(app, "POST", path, {**GIVEN[path], field: value})
                where = f"{path} {field}={value!r:.40}"
                assert call.status in (200, 400), where
                if call.status == 400:
                    error = call.json()["error"]
                    assert error["param"] is not None, where
                    blamed = error["param"].partition(".")[0].partition("[")[0]
                    assert blamed in (field, *RELATED.get(field, ())), (where, error)

    asyncio.run(run())


# A field that is wrong only beside another may be told by the other one's name.
RELATED = {
    "stop": ("stop",),
    "min_tokens": ("min_tokens", "max_tokens"),
    "max_tokens": ("min_tokens",),
    "truncate_prompt_tokens": ("prompt", "messages"),
    "response_format": ("structured_outputs",),
    "tool_choice": ("tools",),
    "add_generation_prompt": ("messages",),
    "continue_final_message": ("messages",),
    "chat_template_kwargs": ("messages",),
    "documents": ("messages",),
}


@pytest.mark.parametrize("name", Sampling.__struct_fields__)
def test_ranges_are_those_of_sampling_parameters(name: str) -> None:
    """What the struct takes at its bounds, `SamplingParams` takes as well."""
    schema = msgspec.json.schema(Sampling)["$defs"]["Sampling"]["properties"][name]
    kinds = schema.get("anyOf", [schema])
    for kind in kinds:
        for bound in ("minimum", "maximum"):
            if bound not in kind or (name, bound) in WIDER:
                continue
            fields = {
                name: kind[bound],
                **({"max_tokens": 2**31 - 1} if name == "min_tokens" else {}),
            }
            assert getattr(SamplingParams(**fields), name) is not None


# Requests may say 0 tokens, and seeds below zero; they become others before they are asked.
WIDER = {("max_tokens", "minimum"), ("seed", "minimum")}


def test_a_body_that_is_no_json() -> None:
    for body in (b"", b"{", b"\xff\xfe", b'{"prompt": "x", "temperature": NaN}', b"[" * 10_000):
        assert refused(body or b" ")["code"] == "invalid_json"
    assert (
        refused(b'{"prompt": "x", "x": ' + b"[" * 64 + b"]" * 64 + b"}")["code"] == "invalid_json"
    )
    assert answer(b'{"prompt": "x", "x": ' + b"[" * 63 + b"]" * 63 + b"}")[0].status == 200


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    "body, path",
    [
        ('{"prompt": "NaN", "temperature": %s}', "temperature"),
        ('{"prompt": "x", "logit_bias": {"5": 1, "6": %s}, "top_p": NaN}', "logit_bias.6"),
        ('{"prompt": {"\\ud800": %s}}', "prompt.\\ud800"),  # half a character
        ('{"prompt": [[1, 2], [3, %s]]}', "prompt[1][1]"),
    ],
)
def test_a_number_that_json_does_not_have_is_named_by_its_field(
    body: str, path: str, word: str
) -> None:
    error = refused((body % word).encode())
    assert (error["param"], error["code"]) == (path, "invalid_json")
    assert path in error["message"]


HUGE = ["1e308", "-1e308", "1e309", "-1e999", "1" + "0" * 400, "-1" + "0" * 5000, "0.1e-400"]
NUMERIC = {"logprobs", "top_logprobs", "max_completion_tokens", "priority",
           "truncate_prompt_tokens", "best_of", *Sampling.__struct_fields__}  # fmt: skip


@pytest.mark.parametrize("field", sorted(NUMERIC | {"model", "stream", "cache_salt"}))
def test_numbers_of_absurd_size_are_taken_or_refused_by_the_name_of_their_field(
    field: str,
) -> None:
    async def run() -> None:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        for path, kind in ((TEXT, CompletionRequest), (CHAT, ChatRequest)):
            for value in HUGE if field in kind.__struct_fields__ else ():
                for shape in ("%s", "[%s]", '{"5": %s}'):
                    given = json.dumps(GIVEN[path])[:-1] + f', "{field}": {shape % value}}}'
                    call = await called(app, "POST", path, given.encode())
                    assert call.status in (200, 400), given[:99]
                    if call.status == 400:
                        blamed = call.json()["error"]["param"]
                        assert blamed.partition(".")[0].partition("[")[0] == field, given[:99]

    asyncio.run(run())


def test_what_is_null_was_left_out() -> None:
    for path, kind in ((TEXT, CompletionRequest), (CHAT, ChatRequest)):
        (plain,) = jobs_of(GIVEN[path], path)
        nulls = dict.fromkeys(kind.__struct_fields__)
        (job,) = jobs_of({**nulls, **GIVEN[path]}, path)
        assert (job.params, job.token_ids) == (plain.params, plain.token_ids)
        options = dict.fromkeys(("include_usage", "continuous_usage_stats", "include_obfuscation"))
        assert jobs_of({**GIVEN[path], "stream": True, "stream_options": options}, path)


NULLS = {"name": None, "tool_calls": None, "function_call": None, "refusal": None, "audio": None}
CALLED = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
          "function": {"name": "f", "arguments": None}}]}  # fmt: skip
SAYS_ALL = (
    "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{% if 'tool_calls' in m %}"
    "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endif %};"
    "{% endfor %}"
)
TELLS_CALLS = (
    "{% for m in messages %}{% if m['content'] is none %}calls{% else %}says{% endif %};"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    "template, text",
    [
        (SAYS_ALL, "user:Hi;assistant:{};tool:;assistant:;"),
        (SAYS_ALL.replace("m['role'] + ':' + m['content']", "m.role ~ ':' ~ m.content"),
         "user:Hi;assistant:{};tool:;assistant:;"),
        (TELLS_CALLS, "says;calls;calls;calls;"),
    ],
)  # fmt: skip
def test_a_message_of_a_history_may_lack_what_it_does_not_say(template: str, text: str) -> None:
    """A template that tells calls by a content of None gets one; others would write it."""
    messages = [
        {**NULLS, "role": "user", "content": "Hi"},
        {**CALLED, "content": None},
        {"role": "tool", "tool_call_id": "1"},
        {**NULLS, "role": "assistant", "content": None},
    ]
    settings = HttpSettings(terms=Terms(trusts_request_template=True))
    for content in ({}, {"content": None}):
        messages[1] = {**CALLED, **content}
        call, engine = answer({"messages": messages, "chat_template": template}, CHAT, settings)
        assert call.status == 200, call.body
        assert engine.tokenizer.decode(engine.jobs[0].token_ids) == text


def test_lone_surrogates_are_refused() -> None:
    assert refused(b'{"prompt": "\\ud800"}')["code"] == "invalid_json"


@pytest.mark.parametrize(
    "fields, param, code",
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": 3}, "prompt", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt", "invalid_value"),
        ({"prompt": [5000]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_value"),
        ({"prompt": [[1], "a"]}, "prompt[1]", "invalid_value"),
        ({"prompt": [1] * 1024}, "prompt", "context_length_exceeded"),
        ({"prompt": "x" * 9000}, "prompt", "context_length_exceeded"),
        ({"prompt": "x", "n": 17}, "n", "invalid_value"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "invalid_value"),
        ({"prompt": "x", "stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ({"prompt": "x", "logit_bias": {"9999": 1}}, "logit_bias", "invalid_value"),
        ({"prompt": "x", "stop_token_ids": [4000]}, "stop_token_ids", "invalid_value"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "unsupported_parameter"),
        ({"prompt": "x", "best_of": 3}, "best_of", "unsupported_parameter"),
        ({"prompt": "x", "use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
        ({"prompt": "x", "logprob_token_ids": [1]}, "logprob_token_ids", "unsupported_parameter"),
        ({"prompt": "x", "thinking_token_budget": 9},
         "thinking_token_budget", "unsupported_parameter"),
        ({"prompt": "x", "stream_options": {"include_usage": True}},
         "stream_options", "invalid_value"),
        ({"prompt": "x", "stream": False, "stream_options": {}},
         "stream_options", "invalid_value"),
        ({"prompt": "x", "stream_options": {"include_usage": 1}},
         "stream_options.include_usage", "invalid_value"),
        ({"prompt": "x", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "invalid_value"),
        ({"prompt": "x", "structured_outputs": {}}, "structured_outputs", "invalid_grammar"),
    ],
)  # fmt: skip
def test_a_wrong_completion_is_named_by_its_field(
    fields: dict[str, Any], param: str, code: str
) -> None:
    error = refused({"model": "bard", **fields})
    assert (error["param"], error["code"]) == (param, code), error


@pytest.mark.parametrize(
    "fields, param",
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({**GIVEN[CHAT], "top_logprobs": 2}, "top_logprobs"),
        ({**GIVEN[CHAT], "chat_template": "x"}, "chat_template"),
        ({**GIVEN[CHAT], "chat_template_kwargs": {"tokenize": 1}}, "chat_template_kwargs.tokenize"),
        ({**GIVEN[CHAT], "functions": [{}]}, "functions"),
        ({**GIVEN[CHAT], "tools": [{}]}, "tools[0]"),
        ({**GIVEN[CHAT], "response_format": {"type": "x"}}, "response_format.type"),
    ],
)
def test_a_wrong_chat_is_named_by_its_field(fields: dict[str, Any], param: str) -> None:
    assert refused({"model": "bard", **fields}, CHAT)["param"] == param


TOOLS = [{"type": "function", "function": {"name": "f", "description": "<s> é"}}]


@pytest.mark.parametrize("choice", [None, "auto", "required", {"function": {"name": "f"}}])
def test_tools_that_the_template_ignores_are_described(choice: Any) -> None:
    call, engine = answer({**GIVEN[CHAT], "tools": TOOLS, "tool_choice": choice}, CHAT)
    assert call.status == 200
    text = engine.tokenizer.decode(engine.jobs[0].token_ids, skip_special_tokens=False)
    assert f"<tools>\n{json.dumps(TOOLS[0], ensure_ascii=False)}\n</tools>" in text
    _, without = answer({**GIVEN[CHAT], "tools": TOOLS, "tool_choice": "none"}, CHAT)
    assert "<tools>" not in without.tokenizer.decode(without.jobs[0].token_ids)


def test_several_calls_may_be_made_unless_one_is_asked_for() -> None:
    def form(**fields: Any) -> Any:
        asked = {**GIVEN[CHAT], "tools": TOOLS, "tool_choice": "required", **fields}
        return answer(asked, CHAT)[1].jobs[0].params["structured_outputs"]

    assert form() == form(parallel_tool_calls=None) == form(parallel_tool_calls=True)
    assert form() != form(parallel_tool_calls=False)


@pytest.mark.parametrize("parser", ["none", "llama3"])
def test_a_parser_of_the_operator_is_not_described(parser: str) -> None:
    settings = HttpSettings(terms=Terms(tool_call_parser=parser))
    call, _ = answer({**GIVEN[CHAT], "tools": TOOLS}, CHAT, settings)
    assert (call.status, call.json()["error"]["param"]) == (400, "tools")
    assert "without --tool-call-parser" in call.json()["error"]["message"]


def test_a_template_of_a_request_is_taken_where_it_is_trusted() -> None:
    settings = HttpSettings(terms=Terms(trusts_request_template=True))
    call, engine = answer({**GIVEN[CHAT], "chat_template": "{{ 'Now!' }}"}, CHAT, settings)
    assert call.status == 200
    assert engine.tokenizer.decode(engine.jobs[0].token_ids) == "Now!"


def test_calls_and_developers_are_read_by_templates() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
    )
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{"}},
        *({"function": {"name": "h", **more}} for more in ({}, {"arguments": None})),
        {"function": {"name": "i", "arguments": ""}},
    ]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    settings = HttpSettings(terms=Terms(trusts_request_template=True))
    _, engine = answer({"messages": messages, "chat_template": template}, CHAT, settings)
    text = engine.tokenizer.decode(engine.jobs[0].token_ids)
    assert text == 'system:Be brief.;assistant:f{"x": 1}g"{"h{}h{}i{};'


REFUSALS: list[dict[str, Any]] = [
    {"content": [{"type": "refusal", "refusal": "No."}]},
    {"content": None, "refusal": "No."},
    {"refusal": "No."},
]


@pytest.mark.parametrize("said", REFUSALS, ids=str)
def test_what_an_assistant_refused_is_what_it_said(said: dict[str, Any]) -> None:
    (job,) = jobs_of({"messages": [{"role": "assistant", **said}]}, CHAT)
    (same,) = jobs_of({"messages": [{"role": "assistant", "content": "No."}]}, CHAT)
    assert job.token_ids == same.token_ids


def test_what_people_write_becomes_no_special_token() -> None:
    special = "<|endoftext|>"
    tokenizer = FakeEngine(says("a")).tokenizer
    (end,) = tokenizer.encode(special)
    for content in (
        f"a{special}b",
        special * 3,
        f"<{special}",
        [{"type": "text", "text": special}],
    ):
        messages = [{"role": "user", "content": content}]
        (job,) = jobs_of({"messages": messages}, CHAT)
        assert job.token_ids.count(end) == 1  # that of the template
        assert tokenizer.decode(job.token_ids, False) == tokenizer.apply_chat_template(messages)
    (job,) = jobs_of({"prompt": special})  # a prompt says all that the model reads
    assert job.token_ids == [end]


def test_what_documents_say_becomes_no_special_token() -> None:
    special = "<|endoftext|>"
    template = "{{ documents[0].text }}{{ messages[0].content }}"
    settings = HttpSettings(terms=Terms(trusts_request_template=True))
    fields = {**GIVEN[CHAT], "documents": [{"text": special}], "chat_template": template}
    _, engine = answer(fields, CHAT, settings)
    (end,) = engine.tokenizer.encode(special)
    found = engine.jobs[0].token_ids
    assert end not in found and engine.tokenizer.decode(found) == f"{special}Hi"


def test_the_last_token_of_the_vocabulary_is_known_and_no_further_one() -> None:
    (job,) = jobs_of({"prompt": [FACTS.vocab_size - 1]})
    assert job.token_ids == [FACTS.vocab_size - 1]
    assert refused({"prompt": [FACTS.vocab_size]})["param"] == "prompt"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, ("thinking_token_budget", None)),
        ({"thinking_token_budget": -1}, ("thinking_token_budget", None)),
        ({"thinking_token_budget": 0}, ("thinking_token_budget", 0)),
        ({"max_thinking_tokens": 5}, ("max_thinking_tokens", 5)),
    ],
)
def test_a_budget_of_minus_one_is_no_bound(fields: dict[str, int], found: tuple[str, Any]) -> None:
    assert thinking_budget(ChatRequest(**GIVEN[CHAT], **fields)) == found


@pytest.mark.parametrize(("own", "most"), [(None, 2), (1, 2), (3, 3)])
def test_an_echo_has_the_scores_that_are_asked_for_either_way(own: int | None, most: int) -> None:
    fields = {"prompt": "x", "echo": True, "logprobs": 2, "prompt_logprobs": own}
    (job,) = jobs_of(fields)
    assert (job.params["logprobs"], job.params["prompt_logprobs"]) == (2, most)


def test_ids_that_callers_choose_are_not_those_of_answers() -> None:
    fields = {"prompt": "x", "request_id": "mine"}
    both = [answer(fields) for _ in range(2)]
    ids = {call.json()["id"] for call, _ in both} | {engine.jobs[0].id for _, engine in both}
    assert len(ids) == 4 and not any("mine" in each for each in ids)


def test_limits_of_a_server_are_set() -> None:
    settings = HttpSettings(terms=Terms(max_n=2, max_logprobs=1))
    assert answer({"prompt": "x", "n": 2, "logprobs": 1}, TEXT, settings)[0].status == 200
    for fields in ({"n": 3}, {"logprobs": 2}, {"prompt_logprobs": 2}):
        assert answer({"prompt": "x", **fields}, TEXT, settings)[0].status == 400


def test_a_model_that_nobody_serves() -> None:
    call, _ = answer({"model": "nobody", "prompt": "x"})
    error = call.json()["error"]
    assert (call.status, error["type"]) == (404, "not_found_error")
    assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_a_model_is_needed_where_there_are_two() -> None:
    engines = {name: FakeEngine(says("a")) for name in ("one", "two")}
    app = build_app(FakeModels(**engines))
    call = asyncio.run(called(app, "POST", TEXT, {"prompt": "x"}))
    assert call.status == 400 and call.json()["error"]["param"] == "model"
    assert "one, two" in call.json()["error"]["message"]


def test_an_unknown_field_is_ignored_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[int]:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        body = {"prompt": "x", "temprature": 1, "user": "me", "seed\nx": 1}
        return [(await called(app, "POST", TEXT, body)).status for _ in range(3)]

    assert asyncio.run(run()) == [200] * 3
    said = [record.getMessage() for record in caplog.records]
    assert sorted(said) == [
        "ignored a field that is unknown: 'seed\\nx' (did its sender mean 'seed'?)",
        "ignored a field that is unknown: 'temprature' (did its sender mean 'temperature'?)",
    ]


def jobs_of(fields: dict[str, Any], path: str = TEXT, facts: Any = FACTS) -> Any:
    engine = FakeEngine(says("a"), facts)
    call = asyncio.run(called(build_app(FakeModels(bard=engine)), "POST", path, fields))
    assert call.status == 200, call.body
    return engine.jobs


def test_prompts_in_all_forms() -> None:
    encode = FakeEngine(says("a")).tokenizer.encode
    ids = encode("To be")
    for prompt, tokens in (
        ("To be", [ids]),
        (["To be", "or not"], [ids, encode("or not")]),
        (ids, [ids]),
        ([ids, [7, 8]], [ids, [7, 8]]),
    ):
        assert [job.token_ids for job in jobs_of({"prompt": prompt})] == tokens


def test_a_completion_may_fill_the_context_unless_told_otherwise() -> None:
    num = len(FakeEngine(says("a")).tokenizer.encode("To be"))
    (job,) = jobs_of({"prompt": "To be"})
    assert job.params["max_tokens"] == FACTS.max_model_len - num
    (job,) = jobs_of({"prompt": "To be", "max_tokens": 10**9})
    assert job.params["max_tokens"] == FACTS.max_model_len - num
    facts = msgspec.structs.replace(FACTS, defaults={"max_tokens": 9, "temperature": 0.5})
    (job,) = jobs_of({"prompt": "To be", "top_p": 0.5}, TEXT, facts)
    assert job.params == {"max_tokens": 9, "temperature": 0.5, "top_p": 0.5}
    (job,) = jobs_of({"prompt": "To be", "max_tokens": 3, "temperature": 1}, TEXT, facts)
    assert job.params == {"max_tokens": 3, "temperature": 1}


def test_the_newer_name_of_max_tokens_wins() -> None:
    fields = {**GIVEN[CHAT], "max_tokens": 5, "max_completion_tokens": 6}
    assert jobs_of(fields, CHAT)[0].params["max_tokens"] == 6


def test_fields_go_to_the_engine() -> None:
    given = {
        "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "seed": 5,
        "max_tokens": 7, "min_tokens": 2, "stop": ["\n"], "include_stop_str_in_output": True,
        "stop_token_ids": [3], "ignore_eos": True, "bad_words": ["no"], "logit_bias": {"5": 1.5},
        "allowed_token_ids": [5, 6], "skip_special_tokens": False,
        "spaces_between_special_tokens": False, "prompt_logprobs": 2,
    }  # fmt: skip
    assert set(given) == set(Sampling.__struct_fields__)
    (job,) = jobs_of({"prompt": "x", "priority": -3, "cache_salt": "s", **given})
    assert job.params == {**given, "logit_bias": {5: 1.5}}
    assert (job.priority, job.salt, job.stream) == (-3, "0:s", False)


def test_seeds_below_zero_are_seeds() -> None:
    assert jobs_of({"prompt": "x", "seed": -5})[0].params["seed"] == 2**64 - 5
    assert jobs_of({"prompt": "x", "seed": -1})[0].params["seed"] == -1
    assert refused({"prompt": "x", "seed": 2**64})["param"] == "seed"


def test_the_last_tokens_of_a_prompt_are_kept() -> None:
    (job,) = jobs_of({"prompt": [1, 2, 3, 4], "truncate_prompt_tokens": 2})
    assert "has no tokens" in refused({"prompt": [1, 2], "truncate_prompt_tokens": 0})["message"]
    assert job.token_ids == [3, 4]
    prompt, most = [*range(2000)], FACTS.max_model_len
    for asked, kept in ((None, most - 1), (0, most), (3, most - 3), (most - 1, 1)):
        fields = {"prompt": prompt, "truncate_prompt_tokens": -1, "max_tokens": asked}
        (job,) = jobs_of(fields)
        assert job.token_ids == prompt[-kept:]
        assert job.params["max_tokens"] == (1 if asked is None else asked)
    for default, kept in ((100, most - 100), (most, most - 1)):
        facts = msgspec.structs.replace(FACTS, defaults={"max_tokens": default})
        (job,) = jobs_of({"prompt": prompt, "truncate_prompt_tokens": -1}, TEXT, facts)
        assert len(job.token_ids) == kept
    error = refused({"prompt": [5], "truncate_prompt_tokens": -1, "max_tokens": most})
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_text_far_over_the_context_is_cut_to_its_last_tokens(path: str) -> None:
    text = "To be, or not " * 2000
    asked = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
    (job,) = jobs_of({**asked, "truncate_prompt_tokens": -1, "max_tokens": 3}, path)
    assert len(job.token_ids) == FACTS.max_model_len - 3
    assert refused(asked, path)["code"] == "context_length_exceeded"


def test_a_prompt_that_is_only_read_may_fill_the_context() -> None:
    most = FACTS.max_model_len
    (job,) = jobs_of({"prompt": [1] * most, "max_tokens": 0, "min_tokens": 3})
    assert len(job.token_ids) == most and job.params == {"max_tokens": 0, "min_tokens": 0}
    for fields, number in (({}, most), ({"max_tokens": 0}, most + 1), ({"max_tokens": 9}, 5000)):
        error = refused({"prompt": [1] * number, **fields})
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        assert f"{most} tokens" in error["message"] and str(number) in error["message"]
        assert ("a completion needs one" in error["message"]) == (fields != {"max_tokens": 0})


def test_keys_do_not_share_cached_prefixes() -> None:
    async def run() -> list[str]:
        engine = FakeEngine(says("a"))
        app = build_app(FakeModels(bard=engine))
        for key, salt in (("a", None), ("b", None), ("a", "s"), ("", "as"), ("", None)):
            body = {"prompt": "x", "cache_salt": salt}
            await called(app, "POST", TEXT, body, key=key)
        return [job.salt for job in engine.jobs]

    salts = asyncio.run(run())
    assert len(set(salts)) == 5 and salts[-1] == ""


def test_the_same_request_has_the_same_fingerprint() -> None:
    first, second, third = (jobs_of({"prompt": prompt})[0] for prompt in ("one", "one", "another"))
    assert first.fingerprint == second.fingerprint != third.fingerprint
    assert first.id != second.id


def test_routes_that_are_not_there() -> None:
    async def run() -> list[tuple[int, Any]]:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        asked = (
            ("GET", "/nothing"),
            ("GET", TEXT),
            ("POST", "/v1/models"),
            ("GET", "/v1/models/x"),
        )
        return [(c.status, c.json()) for c in [await called(app, *each) for each in asked]]

    found = asyncio.run(run())
    assert [status for status, _ in found] == [404, 405, 405, 404]
    assert "Supported: POST." in found[1][1]["error"]["message"]
    for _, body in found:
        assert set(body["error"]) == {"message", "type", "param", "code"}


def test_every_route_says_which_methods_it_takes() -> None:
    async def run() -> None:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        taken: dict[str, set[str]] = {}
        for route in app.routes:
            taken.setdefault(route.path.replace("{name:path}", "bard"), set()).update(route.methods)
        assert taken["/v1/sessions/{id}"] == {"DELETE", "GET", "HEAD"}  # of two routes
        for path, methods in taken.items():
            for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"} - methods:
                call = await called(app, method, path)
                assert call.status == 405, (method, path)
                assert call.headers["allow"] == ", ".join(sorted(methods))

    asyncio.run(run())


def test_slashes_at_the_end_of_a_path_say_nothing() -> None:
    async def run() -> None:
        app = build_app(FakeModels(bard=FakeEngine(says("a"))))
        for path in ("/v1/models", "/v1/models/bard", "/health", "/live", "/models", "/version"):
            plain, *others = [await called(app, "GET", path + end) for end in ("", "/", "//")]
            assert plain.status == 200
            assert all(each.bodies == plain.bodies for each in others), path
        for path in (TEXT, CHAT):
            assert (await called(app, "POST", f"{path}/", GIVEN[path])).status == 200
            assert (await called(app, "GET", f"{path}/")).status == 405

    asyncio.run(run())


def test_errors_are_json_whatever_is_in_them() -> None:
    message = refused({"prompt": "x", "tool\"'\n": 1, "n": 0})["message"]
    assert json.loads(json.dumps(message)) == message
