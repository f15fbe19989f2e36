"""Sandbox of chat templates: jinja2's, with bounds on time and on the size of what is made.

A template is a program of whoever published the model, or of a request that is trusted. It sees
plain data, and neither loops nor builds texts for ever.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from ingot.runtime.chat_sizes import (
    MAX_PROMPT_CHARS,
    SIZES_OF_FILTERS,
    SIZES_OF_METHODS,
    size_of,
    size_of_operation,
)

MAX_SECONDS = 10.0


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Compiler of templates, with the filters and functions that those of models expect."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            finalize=_written,
        )
        self.code_generator_class = _Generator
        self._clock = threading.local()  # templates are rendered in several threads
        self.filters["tojson"] = _tojson
        for name, size in SIZES_OF_FILTERS.items():
            self.filters[name] = _bounded(self.filters[name], size)
        self.globals.pop("lipsum")  # as much text as one asks for
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=lambda form: datetime.now().strftime(form),
            dict=_Dict(),
            namespace=_Namespace,
        )

    def begin(self) -> None:
        """From now on, this thread renders; what takes it too long is ended by SecurityError."""
        self._clock.end = time.monotonic() + MAX_SECONDS

    def tick(self) -> None:
        """Called in every block of statements, and before every call."""
        if time.monotonic() > getattr(self._clock, "end", float("inf")):
            raise jinja2.exceptions.SecurityError(f"it takes more than {MAX_SECONDS:g} seconds")

    def concat_texts(self, parts: Sequence[Any]) -> str:
        """`a ~ b`."""
        _check(size_of(parts))
        return "".join(map(str, parts))

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """An operator whose result may be large."""
        _check(size_of_operation(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(
        self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """A function, or a method of a text, whose result may be large."""
        self.tick()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, (str, bytes)) and name in SIZES_OF_METHODS:
            _check(SIZES_OF_METHODS[name](owner, *args, **kwargs))
        return super().call(context, function, *args, **kwargs)


class _Generator(jinja2.compiler.CodeGenerator):
    """Writes templates as Python that asks for the time in every block of statements."""

    def blockvisit(self, nodes: Any, frame: Any) -> None:
        self.writeline("environment.tick()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Any) -> None:
        self.write("environment.concat_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


def _check(size: int) -> None:
    if size > MAX_PROMPT_CHARS:
        raise jinja2.exceptions.SecurityError(f"it makes more than {MAX_PROMPT_CHARS} characters")


def _written(value: Any) -> Any:
    """Text of a value between {{ and }}."""
    _check(size_of(value))
    return value


def _bounded(function: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
    """A filter that is asked beforehand how much it makes."""
    takes_context = hasattr(function, "jinja_pass_arg")

    @wraps(function)  # with what jinja2 passes to it
    def run(*args: Any, **kwargs: Any) -> Any:
        _check(size(*args[takes_context:], **kwargs))
        return function(*args, **kwargs)

    return run


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's text for training, and means nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _refuse_private(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class _Dict:
    """The `dict` of templates: it makes dicts, and has no attributes to climb out by."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"{name!r} cannot be kept in a namespace")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes HTML and sorts keys; models were trained on this.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
