"""What a server adds to conversations: a system message, another template, and no thinking."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.errors import RequestError
from ingot.runtime.tokenizer import Tokenizer
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.http.app import build_app
from ingot.serve.openai.chat_defaults import ChatDefaults
from ingot.serve.openai.params import Terms
from ingot.serve.requests.context import HttpSettings, ServerContext
from ingot.serve.serving import Kept, Serving, http_settings
from tests.conftest import SHAKESPEARE
from tests.support.asgi import Call, called
from tests.support.fake_engine import FakeEngine, FakeModels, says

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
SHOWS = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
THINKS = "{{ '<think>' if enable_thinking is not defined or enable_thinking }}</think>"
USER = {"role": "user", "content": "Hi"}


def tokenizer_with(**templates: str) -> Tokenizer:
    named = [{"name": name, "template": text} for name, text in templates.items()]
    return Tokenizer((SHAKESPEARE / "tokenizer.json").read_bytes(), {"chat_template": named})


def asked(
    chats: ChatDefaults, path: str = CHAT, *, trusts: bool = True, **fields: Any
) -> tuple[Call, FakeEngine]:
    """The answer of a server with these defaults, whose model has three templates."""
    engine = FakeEngine(says("a"))
    engine.tokenizer = tokenizer_with(default=SHOWS, thinker=f"{SHOWS}{THINKS}", last="{{ 'L' }}")
    settings = HttpSettings(terms=Terms(chats=chats, trusts_request_template=trusts))
    app = build_app(FakeModels(bard=engine), settings)
    return asyncio.run(called(app, "POST", path, {"messages": [USER], **fields})), engine


def prompt(chats: ChatDefaults, **fields: Any) -> str:
    """What the model is asked, in a chat and by `/tokenize`."""
    call, engine = asked(chats, **fields)
    assert call.status == 200, call.body
    (job,) = engine.jobs
    tokens = asked(chats, TOKENIZE, **fields)[0].json()["tokens"]
    assert tokens == job.token_ids
    return engine.tokenizer.decode(job.token_ids, False)


def test_a_conversation_without_a_system_message_gets_the_servers() -> None:
    chats = ChatDefaults(system="Be brief.")
    assert prompt(ChatDefaults()) == "user:Hi;"
    assert prompt(chats) == "system:Be brief.;user:Hi;"
    for role, read in (("system", "system"), ("developer", "system")):
        own = [{"role": role, "content": "Rhyme."}, USER]
        assert prompt(chats, messages=own) == f"{read}:Rhyme.;user:Hi;"
        assert prompt(chats, messages=own[::-1]) == f"user:Hi;{read}:Rhyme.;"
    knows = SHOWS + "{# developer #}"
    assert prompt(chats, messages=own, chat_template=knows) == "developer:Rhyme.;user:Hi;"


def test_another_template_goes_by_its_name_or_as_jinja() -> None:
    assert prompt(ChatDefaults(template="last")) == "L"
    assert prompt(ChatDefaults(template="{{ messages | length }}")) == "1"
    own = "{{ 'own' }}"
    assert prompt(ChatDefaults(template="last", thinks=False), chat_template=own) == "own"


def test_thinking_is_switched_unless_a_request_does_it() -> None:
    chats = ChatDefaults(template="thinker", thinks=False)
    assert prompt(chats) == "user:Hi;</think>"
    assert prompt(ChatDefaults(template="thinker")) == "user:Hi;<think></think>"
    asks = {"chat_template_kwargs": {"enable_thinking": True}}
    assert prompt(chats, **asks) == "user:Hi;<think></think>"


def test_a_request_may_name_a_template_of_the_model_without_being_trusted() -> None:
    call, engine = asked(ChatDefaults(), trusts=False, chat_template="last")
    assert call.status == 200
    assert engine.tokenizer.decode(engine.jobs[0].token_ids) == "L"
    for own in ("{{ 'own' }}", "rag", ""):
        call, _ = asked(ChatDefaults(), trusts=False, chat_template=own)
        assert (call.status, call.json()["error"]["param"]) == (400, "chat_template")
        assert "default, thinker, last" in call.json()["error"]["message"]


def test_what_a_request_says_to_its_template_comes_before_its_effort() -> None:
    shows = {"chat_template": "{{ reasoning_effort }}", "reasoning_effort": "high"}
    _, engine = asked(ChatDefaults(), **shows)
    assert engine.tokenizer.decode(engine.jobs[0].token_ids) == "high"
    own = {"chat_template_kwargs": {"reasoning_effort": "low"}}
    assert prompt(ChatDefaults(), **shows, **own) == "low"


def test_reasoning_is_told_apart_as_the_template_in_use_marks_it() -> None:
    engine = FakeEngine(says("<think>a</think>b"))
    engine.tokenizer = tokenizer_with(default=SHOWS, thinker=f"{SHOWS}{THINKS}")
    for template, content in ((None, "<think>a</think>b"), ("thinker", "b")):
        settings = HttpSettings(terms=Terms(chats=ChatDefaults(template=template, thinks=None)))
        app = build_app(FakeModels(bard=engine), settings)
        call = asyncio.run(called(app, "POST", CHAT, {"messages": [USER]}))
        assert call.json()["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize(
    ("chats", "said"),
    [
        (ChatDefaults(template="rag"), "'rag' is no chat template"),
        (ChatDefaults(thinks=False), "the chat template has no switch for thinking"),
    ],
)
def test_a_model_that_lacks_what_is_asked_for_is_refused(chats: ChatDefaults, said: str) -> None:
    call, engine = asked(chats)
    assert (call.status, engine.jobs) == (400, [])
    assert said in call.json()["error"]["message"]
    with pytest.raises(RequestError, match=said):
        chats.check(engine.tokenizer)


def test_a_template_that_takes_no_system_message_is_refused_at_the_start() -> None:
    with pytest.raises(RequestError, match="leaves out the system message"):
        ChatDefaults(template="last", system="x").check(tokenizer_with(last="{{ 'L' }}"))


def test_models_have_their_own_whatever_they_are_called_by() -> None:
    engines = {"bard": FakeEngine(says("a")), "other": FakeEngine(says("a"))}
    for engine in engines.values():
        engine.tokenizer = tokenizer_with(default=SHOWS)
    models = FakeModels(**engines)
    models.name_of = lambda name: {"alias": "bard"}.get(name, name)  # type: ignore[method-assign]
    every = Terms(chats=ChatDefaults(system="every"))
    settings = HttpSettings(terms=every, chats={"bard": ChatDefaults(system="own")})
    app = build_app(models, settings)
    for name, said in (("bard", "own"), ("other", "every")):
        body = {"model": name, "messages": [USER]}
        assert asyncio.run(called(app, "POST", CHAT, body)).status == 200
        (job,) = engines[name].jobs
        text = f"system:{said};user:Hi;"
        assert engines[name].tokenizer.decode(job.token_ids, False) == text
        tokens = asyncio.run(called(app, "POST", TOKENIZE, body)).json()["tokens"]
        assert tokens == job.token_ids
    site = ServerContext(models=models, settings=settings)
    assert site.terms_of("alias").chats.system == "own"


def test_a_model_that_comes_later_has_what_all_have() -> None:
    every, own = ChatDefaults(system="every"), ChatDefaults(system="own")
    serving = Serving(model=Kept(chats=every), own={"bard": Kept(chats=own)})
    models = FakeModels(bard=FakeEngine(says("a")), later=FakeEngine(says("a")))
    site = ServerContext(models=models, settings=http_settings(serving, EdgeSettings()))
    assert (site.terms_of("bard").chats, site.terms_of("later").chats) == (own, every)


def test_a_model_that_has_all_of_it_or_no_template_is_served() -> None:
    has = tokenizer_with(default=SHOWS, thinker=f"{SHOWS}{THINKS}")
    for chats in (ChatDefaults(), ChatDefaults(template="thinker", thinks=False, system="x")):
        chats.check(has)
    ChatDefaults(thinks=False, system="x").check(tokenizer_with())
