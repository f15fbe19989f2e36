"""A file for `serve deploy` that says what cannot be is refused before anything is started."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ingot.errors import UsageError
from ingot.serve.openai.chat_defaults import ChatDefaults
from ingot.serve.ray.arguments import RayArguments, read_args


def args(**model: Any) -> dict[str, Any]:
    return {"models": [{"name": "m", "path": "/models/m.ingot", **model}]}


def test_what_is_left_out_has_its_usual_value():
    found = read_args(args(settings={"context": 64}, min_replicas=3))
    (model,) = found.models
    assert (model.settings.context, model.settings.threads, model.most_replicas) == (64, 1, 3)
    assert found == RayArguments(models=[model]) and found.fronts_on_head
    assert model.chats == ChatDefaults()
    assert read_args(args(chats={"thinks": False})).models[0].chats.thinks is False
    assert read_args(args(min_replicas=0)).models[0].most_replicas == 1


@pytest.mark.parametrize(
    "data, said",
    [
        ({}, "missing required field `models`"),
        ({"models": []}, r"length >= 1 - at `\$.models`"),
        ({"models": [{"name": "m"}]}, "missing required field `path`"),
        (args(path=""), r"`\$.models\[0\].path`"),
        (args(treads=2), r"unknown field `treads` - at `\$.models\[0\]`"),
        (args(settings={"treads": 2}), r"unknown field `treads` - at `\$.models\[0\].settings`"),
        (args(settings={"threads": 0}), "settings of a model: threads is 0"),
        (args(settings={"threads": "two"}), "Expected `int`, got `str`"),
        (args(chats={"sistem": "x"}), r"unknown field `sistem` - at `\$.models\[0\].chats`"),
        (args(max_ongoing=0), r"`\$.models\[0\].max_ongoing`"),
        (args(target_ongoing=0), r"`\$.models\[0\].target_ongoing`"),
        (args(min_replicas=3, max_replicas=2), "max_replicas is 2, and min_replicas 3"),
        (args() | {"balance": {"less": 1}}, r"unknown field `less` - at `\$.balance`"),
        (args() | {"fronts": 0}, r"`\$.fronts`"),
        ({"models": args()["models"] * 2}, "several models are called m"),
    ],
)
def test_what_is_wrong_is_named(data, said):
    with pytest.raises(UsageError, match=said) as raised:
        read_args(data)
    assert str(raised.value).startswith("args of the application: ") and raised.value.hint


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ingot.serve.ray.app", raising=False)
    with pytest.raises(UsageError, match=r"ingot-lm\[ray\]"):
        import ingot.serve.ray.app  # noqa: F401
