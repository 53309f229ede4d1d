"""From the arguments of a call to the key of the work (A6).

Three texts are made here. The *key* is readable and names the work; the *payload hash* tells whether two calls with
one key mean the same; the *store key* is what the record is filed under.

How a key is spelled: the literal text of a template stays as it is, and each value is percent-encoded (UTF-8) outside
`A-Z a-z 0-9 _ . -`, so a value cannot pose as a separator. What is no text is marked by `~`, which no encoded text
contains: `~true`, `~false`, `~null`, `~empty` for the empty string, and `~` before the canonical JSON of a list, dict
or set. Where a template separates two values by one of `_ . -`, that character is encoded inside the values as well.
The text that a callable returns is the whole key: it is encoded like a value, save that `:` and `/` stay; a tuple is
joined by `:` like several names. A text over 200 characters is replaced by its SHA-256.
"""

from __future__ import annotations

import inspect
import re
import string
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

from task_contract.canonical import canonical, digits, dumps, plain
from task_contract.errors import ConfigurationError, KeyDerivationError

KeySpec = str | tuple[str, ...] | list[str] | Callable[..., object]
"""An argument name, several names, a `{template}` over the arguments, or a callable that takes what the task takes."""

Target = Callable[..., Any] | inspect.Signature

MAX_LENGTH = 200

_safe = re.compile(r"[A-Za-z0-9_.-]+").fullmatch
_field = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[[^\[\]]+\])*").fullmatch
_parts = re.compile(r"\.(\w+)|\[([^\[\]]+)\]").findall


# --- the arguments of a call ---------------------------------------------------------------------------------------


class _Shape(NamedTuple):
    """What binding needs of a signature, worked out once: `Signature.bind` takes several microseconds a call."""

    signature: inspect.Signature
    positional: tuple[str, ...]
    names: frozenset[str]
    defaults: dict[str, Any]
    default_texts: dict[str, str | None]
    extra: str | None
    simple: bool


def bind(fn: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, defaults included, so that `f(1)` and `f(x=1)` are one call."""
    shape = _shape(fn)
    return {**shape.defaults, **_given(shape, fn, args, kwargs)}


def _given(shape: _Shape, fn: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, without those the caller left out."""
    by_position = shape.positional[: len(args)]
    if shape.simple and len(by_position) == len(args) and kwargs.keys().isdisjoint(by_position):
        given = {**dict(zip(by_position, args, strict=True)), **kwargs}
        if given.keys() | shape.defaults.keys() == shape.names:
            return given
    try:
        return shape.signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise KeyDerivationError(
            f"the call does not fit {_name(fn)}{shape.signature}: {error}; pass the arguments the task takes"
        ) from None


def _shape(fn: Target) -> _Shape:
    try:
        return _shape_of(fn)
    except TypeError:
        return _shape_of.__wrapped__(fn)  # a callable object that cannot be hashed is looked at each time


@lru_cache(maxsize=4096)
def _shape_of(fn: Target) -> _Shape:
    signature = _signature(fn)
    parameters = signature.parameters.values()
    starred = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return _Shape(
        signature=signature,
        positional=tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)),
        names=frozenset(signature.parameters),
        defaults={**defaults, **{p.name: () if p.kind is p.VAR_POSITIONAL else {} for p in starred}},
        default_texts={name: _text_or_none(value) for name, value in defaults.items()},
        extra=next((p.name for p in starred if p.kind is p.VAR_KEYWORD), None),
        simple=not starred and not any(p.kind is p.POSITIONAL_ONLY for p in parameters),
    )


def _signature(fn: Target) -> inspect.Signature:
    if isinstance(fn, inspect.Signature):
        return fn
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{_name(fn)} has no readable signature, so its arguments have no names; wrap it in a function of your own"
        ) from None


def _name(fn: object) -> str:
    if isinstance(fn, inspect.Signature):
        return "the task"
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


# --- what a key is made of -----------------------------------------------------------------------------------------


class _Slot(NamedTuple):
    """One `{order.id}` of a template: the argument, then the way to the value."""

    text: str
    name: str
    path: tuple[tuple[str, str], ...]


class _Plan(NamedTuple):
    """A template or list of names, taken apart: `literals` has one entry more than `slots`."""

    literals: tuple[str, ...]
    slots: tuple[_Slot, ...]
    also_encode: str


def check_syntax(spec: object) -> str | tuple[str, ...] | Callable[..., object]:
    """The spec, with a list turned into a tuple, or a ConfigurationError that says what is wrong with it."""
    if isinstance(spec, list):
        spec = tuple(spec)
    if isinstance(spec, str) or (isinstance(spec, tuple) and all(isinstance(name, str) for name in spec)):
        _plan(spec)
        return spec
    if callable(spec):
        return spec
    raise ConfigurationError(
        f"{repr(spec)[:80]} should be an argument name, a tuple of names, a '{{template}}' or a callable"
    )


def check_spec(spec: KeySpec, fn: Target) -> None:
    """Refuse, where the task is declared, a spec that none of its calls could satisfy."""
    spec = check_syntax(spec)
    if isinstance(spec, (str, tuple)):
        _check_names(spec, fn)
    else:
        _check_callable(spec, fn)


def _check_names(spec: str | tuple[str, ...], fn: Target) -> None:
    shape = _shape(fn)
    for slot in _plan(spec).slots:
        if slot.name not in shape.names and shape.extra is None:
            own = ", ".join(shape.signature.parameters) or "none at all"
            raise ConfigurationError(
                f"{spec!r} names {slot.name!r}, which {_name(fn)} does not take; its arguments are: {own}"
            )


def _check_callable(spec: Callable[..., object], fn: Target) -> None:
    try:
        takes = inspect.signature(spec)
    except (TypeError, ValueError):
        return  # a builtin may well work; the call will tell
    parameters = _shape(fn).signature.parameters.values()
    starred = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    named = {p.name: None for p in parameters if p not in starred and p.kind is not p.POSITIONAL_ONLY}
    in_order = [None for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    last = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    if not (_fits(takes, in_order, last) or _fits(takes, [], named)):
        raise ConfigurationError(
            f"the key function {_name(spec)}{takes} cannot take the arguments of {_name(fn)}{_shape(fn).signature}; "
            "give it the same parameters"
        )


def _fits(signature: inspect.Signature, args: list[None], kwargs: dict[str, None]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@lru_cache(maxsize=4096)
def _plan(spec: str | tuple[str, ...]) -> _Plan:
    if isinstance(spec, str) and "{" in spec:
        return _template_plan(spec)
    names = (spec,) if isinstance(spec, str) else spec
    for name in names or ("",):
        if not name.isidentifier():
            hint = "close the brace" if "}" in name else "write a template such as '{order_id}:mail' for anything else"
            raise ConfigurationError(f"{name!r} is not an argument name; {hint}")
    return _Plan(("", *[":"] * (len(names) - 1), ""), tuple(_Slot(name, name, ()) for name in names), "")


def _template_plan(template: str) -> _Plan:
    literals, slots = [""], []
    for literal, field, spec, conversion in _chunks(template):
        literals[-1] += literal
        if field is not None:
            slots.append(_slot(template, field, spec, conversion))
            literals.append("")
    if not slots:
        raise ConfigurationError(f"{template!r} names no argument, so all calls would share a key; add '{{argument}}'")
    _check_literals(template, literals)
    return _Plan(tuple(literals), tuple(slots), "".join(_separators(template, literals, slots)))


def _chunks(template: str) -> list[tuple[str, str | None, str | None, str | None]]:
    try:
        return list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigurationError(
            f"{template!r} is no template: {error}; every '{{' needs its '}}' (a literal brace is written twice)"
        ) from None


def _slot(template: str, field: str, spec: str | None, conversion: str | None) -> _Slot:
    if spec or conversion:
        raise ConfigurationError(
            f"{template!r}: {{{field}}} carries a format or conversion, but values have one spelling; "
            "use a callable to shape them"
        )
    if not _field(field):
        raise ConfigurationError(
            f"{template!r}: {{{field}}} should name an argument, as in '{{order_id}}' or '{{order.id}}'"
        )
    name = re.split(r"[.\[]", field, maxsplit=1)[0]
    path = tuple((".", dot) if dot else ("[", item) for dot, item in _parts(field[len(name) :]))
    if any(part.startswith("_") for part in (name, *(part for _, part in path))):
        raise ConfigurationError(f"{template!r}: {{{field}}} uses a private name; name a public argument or attribute")
    return _Slot(field, name, path)


def _check_literals(template: str, literals: list[str]) -> None:
    text = "".join(literals)
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError(
            f"{template!r}: the text around the arguments should be printable ASCII without spaces, "
            "so that any API takes the key"
        )


def _separators(template: str, literals: list[str], slots: list[_Slot]) -> Iterator[str]:
    """The characters that must not appear inside a value, because they alone hold two values apart."""
    for left, right, literal in zip(slots, slots[1:], literals[1:], strict=False):
        if re.search(r"[^A-Za-z0-9_.%~-]", literal):
            continue  # no value contains this one anyway
        weak = re.search(r"[_.-]", literal)
        if weak is None:
            raise ConfigurationError(
                f"{template!r}: nothing keeps {{{left.text}}} and {{{right.text}}} apart, so '1','23' and '12','3' "
                f"would share a key; write '{{{left.text}}}:{{{right.text}}}'"
            )
        yield weak[0]


# --- the key -------------------------------------------------------------------------------------------------------


def derive(spec: KeySpec, fn: Target, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The key of this call. A callable gets what the task gets and returns the key, or a tuple of its parts."""
    if isinstance(spec, list):
        spec = tuple(spec)
    if not isinstance(spec, (str, tuple)):
        return _bounded(_called(spec, args, kwargs))
    plan = _plan(spec)
    shape = _shape(fn)
    bound = {**shape.defaults, **_given(shape, fn, args, kwargs)}
    text = plan.literals[0]
    for slot, literal in zip(plan.slots, plan.literals[1:], strict=True):
        text += _value(slot, plan, shape, fn, bound) + literal
    return _bounded(text)


def _value(slot: _Slot, plan: _Plan, shape: _Shape, fn: Target, bound: dict[str, Any]) -> str:
    value = _lookup(slot, shape, fn, bound)
    try:
        text = _encode(value)
    except KeyDerivationError as error:
        raise KeyDerivationError(f"{_name(fn)}: {{{slot.text}}} cannot be part of a key: {error}") from None
    for character in plan.also_encode:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _lookup(slot: _Slot, shape: _Shape, fn: Target, bound: dict[str, Any]) -> Any:
    value = bound[slot.name] if slot.name in bound else _from_extra(slot, shape, fn, bound)
    for kind, part in slot.path:
        value = _step_into(value, kind, part, slot, fn)
    return value


def _step_into(value: Any, kind: str, part: str, slot: _Slot, fn: Target) -> Any:
    try:
        return getattr(value, part) if kind == "." else _item(value, part)
    except (AttributeError, LookupError, TypeError, ValueError):
        way = f"item {part!r}" if kind == "[" else f"attribute {part!r}"
        raise KeyDerivationError(
            f"{_name(fn)}: {{{slot.text}}} leads nowhere: {type(value).__name__} has no {way}; pass a value that "
            "has it, or change the template ('{order.id}' is for attributes, '{order[id]}' for dicts and lists)"
        ) from None


def _from_extra(slot: _Slot, shape: _Shape, fn: Target, bound: dict[str, Any]) -> Any:
    extra: Mapping[str, Any] = bound[shape.extra] if shape.extra else {}
    if slot.name not in extra:
        own = ", ".join(sorted(bound.keys() | extra.keys())) or "none"
        raise KeyDerivationError(f"{_name(fn)}: the key needs the argument {slot.name!r}; this call has: {own}")
    return extra[slot.name]


def _item(value: Any, part: str) -> Any:
    if isinstance(value, Mapping) and part in value:
        return value[part]
    return value[int(part)]


def _called(spec: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    try:
        return _returned(spec(*args, **kwargs))
    except Exception as error:
        raise KeyDerivationError(
            f"the key function {_name(spec)} gave no key: {type(error).__name__}: {error}; it is called with the "
            "arguments of the task and should return a text, a number, a UUID or a tuple of those"
        ) from error


def _returned(result: object) -> str:
    if result is None or (isinstance(result, (str, tuple)) and not result):
        raise KeyDerivationError(f"it returned {result!r}, which identifies nothing")
    if isinstance(result, tuple):
        return ":".join(_encode(part) for part in result)
    return _percent(result, keep=":/") if type(result) is str else _encode(result)


def _encode(value: Any) -> str:
    if type(value) is str:
        return _percent(value) if value else "~empty"
    if type(value) is int:
        return digits(value)
    spelled = plain(value)
    if isinstance(spelled, str):
        return _percent(spelled) if spelled else "~empty"
    text = dumps(spelled)
    # The mark keeps a list apart from the string that spells it, and None apart from "null".
    return _percent(text) if type(spelled) in (int, float) else "~" + _percent(text)


def _percent(text: str, keep: str = "") -> str:
    if _safe(text):
        return text
    # `quote` lets "~" through, which marks what is no text.
    return quote(text, safe=keep, errors="surrogatepass").replace("~", "%7E")


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else _sha(text).hex()


def _sha(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def explicit(key: object) -> str:
    """The `idempotency_key=` a caller gave for one call, checked."""
    if not isinstance(key, str):
        raise KeyDerivationError(f"idempotency_key should be a text, got {type(key).__name__}; use str(…)")
    if not key.strip():
        raise KeyDerivationError("idempotency_key is empty; name the work it stands for, or leave it out")
    if not key.isprintable():
        raise KeyDerivationError(f"idempotency_key {key!r:.80} has control or unprintable characters; take them out")
    return _bounded(str.__str__(key))


def child_key(parent_key: str, position: str) -> str:
    """The key of what this work continues with: the same at each dispatch, so that the second one is recognised."""
    # A position has no ">" once it is encoded, so the last one in the text always parts the two.
    return _bounded(f"{parent_key}>{_percent(position)}")


def store_key(message_type: str, key: str) -> str:
    """What the record is filed under. Length first, or `a:b` + `c` would be `a` + `b:c`."""
    parts = (part.encode("utf-8", "surrogatepass") for part in (message_type, key))
    return _short(sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()[:20])


def _short(digest: bytes) -> str:
    return urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


# --- the payload ---------------------------------------------------------------------------------------------------


def payload_hash(fn: Target | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A hash of the arguments; empty if there is none to be had, which skips the check for a mismatch."""
    if fn is None:
        return ""
    try:
        shape = _shape(fn)
        return _short(_sha(canonical(_without_defaults(shape, _given(shape, fn, args, kwargs))))[:16])
    except Exception:  # noqa: BLE001 (whatever an argument does when looked at, it must not stop the call)
        return ""


def _without_defaults(shape: _Shape, given: dict[str, Any]) -> dict[str, Any]:
    # A default counts as left out. A release that adds `def f(x, new=None)` thus keeps the hash of every f(1) that is
    # still on its way; with defaults in the hash, a rolling deploy would call each of them a mismatch.
    if shape.default_texts.keys().isdisjoint(given):
        return given
    return {name: value for name, value in given.items() if not _is_default(shape, name, value)}


def _is_default(shape: _Shape, name: str, value: Any) -> bool:
    if name not in shape.default_texts:
        return False
    text = shape.default_texts[name]
    # By spelling, because a default of () comes back from JSON as [].
    return value is shape.defaults[name] or (text is not None and canonical(value) == text)


def _text_or_none(value: Any) -> str | None:
    try:
        return canonical(value)
    except KeyDerivationError:
        return None
