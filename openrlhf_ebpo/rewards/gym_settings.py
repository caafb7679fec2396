"""Settings of reasoning-gym's data sets, read by the types of their configuration's fields: `false` or Python's `False` of a
switch, text of an enumeration or a date, lists as in JSON.

A setting has two forms: as JSON holds it (in commands, labels and reports), and as the configuration takes it.
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
import typing
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType

SWITCH = {"true": True, "false": False}
DATES = {datetime.date: "a date such as 2000-01-31", datetime.time: "a time such as 13:30:00"}
NEEDED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null", **DATES}
JSON_BEGINS = ("[", "{", '"')


class UnknownSetting(ValueError):
    """The configuration has no such field."""


def split(text: str) -> dict[str, str]:
    """The settings of `size=100,operators=["+","-"],…`, as texts by name. A comma in brackets or quotes is no end.

    Raises:
        ValueError: it is not written so, or one is given twice.
    """
    found: dict[str, str] = {}
    while text := text.lstrip(", "):
        name, equals, rest = text.partition("=")
        name, rest = name.strip(), rest.lstrip()
        if not equals or not name.isidentifier():
            raise ValueError(f"settings are written as size=100,seed=1, not {text.partition(',')[0]!r}")
        if name in found:
            raise ValueError(f"{name} is given twice")
        end = _json_end(name, rest) if rest.startswith(JSON_BEGINS) else rest.find(",") % (len(rest) + 1)
        found[name], text = rest[:end].strip(), rest[end:].lstrip()
        if text and not text.startswith(","):
            raise ValueError(f"{name}: after {found[name]} a comma is needed, not {text!r}")
    return found


def _json_end(name: str, text: str) -> int:
    try:
        return json.JSONDecoder().raw_decode(text)[1]
    except ValueError as error:
        raise ValueError(
            f'{name}: {text!r:.80} is no JSON ({error}); lists are written as ["+","-"], with double quotes'
        ) from None


def unfinished(text: str) -> bool:
    """Whether the last value of such a text is JSON that goes on behind a comma."""
    return (
        any(text.count(opening) > text.count(closing) for opening, closing in ("[]", "{}")) or text.count('"') % 2 > 0
    )


def given(config: type, texts: dict[str, str]) -> dict:
    """Settings as JSON holds them, of their texts.

    Raises:
        ValueError: no such setting, or a text that does not fit its field.
    """
    known = _fields(config)
    return {name: _of_text(name, text, _field(known, name)) for name, text in texts.items()}


def fitting(config: type, settings: dict) -> dict:
    """Settings as the configuration takes them. What is one of its objects already stays as it is.

    Raises:
        ValueError: no such setting, or a value that does not fit its field.
    """
    known = _fields(config)
    return {name: _fitted(name, value, _field(known, name)) for name, value in settings.items()}


def plain(value):
    """A setting as JSON holds it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def as_text(settings: dict) -> str:
    """Settings as `split` and `given` read them again."""
    return ",".join(f"{name}={value_text(value)}" for name, value in settings.items())


def value_text(value) -> str:
    value = plain(value)
    is_plain = isinstance(value, str) and value == value.strip(" ,") and not set(value) & set(',[{"')
    return value if is_plain else json.dumps(value)


def default(field: Field):
    return field.default if field.default_factory is MISSING else field.default_factory()


def _fields(config: type) -> dict[str, tuple[Field, typing.Any]]:
    types = typing.get_type_hints(config)
    return {each.name: (each, types[each.name]) for each in fields(config)}


def _field(known: dict, name: str) -> tuple[Field, typing.Any]:
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 1)
    raise UnknownSetting(f"there is no setting {name}" + (f". Did you mean {near[0]}?" if near else ""))


def _of_text(name: str, text: str, field: tuple[Field, typing.Any]):
    try:
        value = json.loads(text)
    except ValueError:
        return plain(_fitted(name, text, field))
    try:
        return plain(_fitted(name, value, field))
    except ValueError:
        return plain(_fitted(name, text, field))  # 42, where it is a text


def _fitted(name: str, value, field: tuple[Field, typing.Any]):
    declared, kind = field
    usual = default(declared)
    if type(value) is type(plain(usual)) and value == plain(usual) and not isinstance(value, list):
        return usual  # it need not be of the field's type
    try:
        return _read(value, kind)
    except ValueError:
        shown = value if isinstance(value, str) else json.dumps(value, default=str)
        raise ValueError(f"the setting {name} must be {_needed(kind)}, not {shown:.80}") from None


def _read(value, kind):
    """The value as one of this type.

    Raises:
        ValueError: it is none.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return _first(value, arguments)
    if origin is typing.Literal and value in arguments:
        return value
    if _is_list(kind) and isinstance(value, (list, tuple)):
        return _items(value, arguments)
    if not isinstance(kind, type) or _is_list(kind):
        raise ValueError(value)
    if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(value)
        return value
    if kind is float and type(value) is int:
        return value
    if kind is bool and isinstance(value, str) and value.lower() in SWITCH:
        return SWITCH[value.lower()]
    if kind in DATES and isinstance(value, str):
        return kind.fromisoformat(value)
    if is_dataclass(kind) and isinstance(value, dict):
        return kind(**fitting(kind, value))
    named = [each for each in kind if value in (each.value, each.name)] if issubclass(kind, Enum) else []
    if not named:
        raise ValueError(value)
    return named[0]


def _first(value, kinds):
    for kind in kinds:
        try:
            return _read(value, kind)
        except ValueError:
            continue
    raise ValueError(value)


def _items(values: list | tuple, kinds: tuple) -> list | tuple:
    """A list stays a list where tuples are usual: it is what the entries hold, and with them fingerprints."""
    if len(kinds) > 1 and kinds[-1] is not Ellipsis:
        if len(values) != len(kinds):
            raise ValueError(values)
        return type(values)(_read(value, kind) for value, kind in zip(values, kinds, strict=True))
    return type(values)(_read(value, kinds[0]) for value in values) if kinds else values


def _is_list(kind) -> bool:
    return kind in (list, tuple) or typing.get_origin(kind) in (list, tuple, Sequence)


def _needed(kind) -> str:
    """What a value of this type is, in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return " or ".join(_needed(each) for each in arguments)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if _is_list(kind):
        items = [_needed(each) for each in arguments if each is not Ellipsis]
        return f"a list as in JSON{f', of {items[0]} each' if len(items) == 1 else ''}" + (
            f" of {', '.join(items)}" if len(items) > 1 else ""
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(each.value) for each in kind)}"
    if is_dataclass(kind):
        return f"a JSON object with {', '.join(each.name for each in fields(kind))}"
    return NEEDED.get(kind, "another value")
