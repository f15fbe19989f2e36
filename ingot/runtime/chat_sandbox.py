"""Where chat templates run: jinja2's sandbox, with bounds on time and on the size of what is made.

A template is a program of whoever published the model, or of a request that is trusted. It sees
plain data, and neither loops nor builds texts for ever.
"""

from __future__ import annotations

import json
import re
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

MAX_PROMPT_CHARS = 16 << 20
MAX_SECONDS = 10.0
_WIDE = re.compile(r"\d{6}|\*")  # a width in a format, or one that is given beside it


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """What compiles templates, with the filters and functions that those of models expect."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        self.code_generator_class = _Generator
        self._clock = threading.local()  # templates are rendered in several threads
        self.filters["tojson"] = _tojson
        for name, size in _SIZES_OF_FILTERS.items():
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
        texts = [str(part) for part in parts]
        _check(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """An operator whose result may be large."""
        _check(_size_of_operation(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(
        self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """A function, or a method of a text, whose result may be large."""
        self.tick()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, (str, bytes)) and name in _SIZES_OF_METHODS:
            _check(_SIZES_OF_METHODS[name](owner, *args, **kwargs))
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


def _size_of_operation(operator: str, left: Any, right: Any) -> int:
    """At most how large a result becomes; 0 where it is no larger than its parts."""
    if operator == "%":
        return _formatted(left) if isinstance(left, (str, bytes)) else 0
    if operator == "**":
        are_numbers = isinstance(left, int) and isinstance(right, int)
        return int(left.bit_length() * right) if are_numbers else 0
    sizes: list[int] = [
        len(side) for side in (left, right) if isinstance(side, (str, bytes, list, tuple))
    ]
    if operator == "+":
        return sum(sizes)
    times: list[int] = [side for side in (left, right) if isinstance(side, int)]
    return sizes[0] * times[0] if sizes and times else 0


def _formatted(text: Any, *_: Any, **__: Any) -> int:
    is_wide = _WIDE.search(text if isinstance(text, str) else str(text))
    return MAX_PROMPT_CHARS + 1 if is_wide else 0


def _padded(text: Any, width: int = 80, *_: Any, **__: Any) -> int:
    return int(width)


def _tabbed(text: Any, tabsize: int = 8) -> int:
    return len(text) * max(tabsize, 1)


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    each = width if isinstance(width, int) else len(width)
    return len(str(text)) + (str(text).count("\n") + 1) * each


def _replaced(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    text = text if isinstance(text, (str, bytes)) else str(text)
    count: int = text.count(old)
    return len(text) + count * len(new)


def _joined(text: Any, parts: Any, *_: Any, **__: Any) -> int:
    known = parts if isinstance(parts, (list, tuple)) else ()
    return sum(len(part) + len(text) for part in known if isinstance(part, (str, bytes)))


def _batched(items: Any, count: int, *_: Any, **__: Any) -> int:
    return int(count)


_SIZES_OF_METHODS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("ljust", "rjust", "center", "zfill"), _padded),
    **dict.fromkeys(("format", "format_map"), _formatted),
    "expandtabs": _tabbed,
    "replace": _replaced,
    "join": _joined,
}
_SIZES_OF_FILTERS: dict[str, Callable[..., int]] = {
    "batch": _batched,
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "join": lambda parts, d="", *_, **__: _joined(d, parts),
    "replace": _replaced,
    "slice": _batched,
}


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
    _check(1000 * indent if isinstance(indent, int) else 0)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
