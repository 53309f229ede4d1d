"""One JSON text per value (A6): dates, decimals, UUIDs, enums, dataclasses and models have one spelling each."""

from __future__ import annotations

import dataclasses
import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from task_contract.errors import KeyDerivationError

MAX_DEPTH = 64
_MAX_DIGITS = 1000

# Without circular checks: `_is_plain` and `plain` have walked the value to a bounded depth by then.
_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False)
_ATOMS = frozenset((str, int, float, bool, type(None)))
_PLAIN = _ATOMS | {list, tuple, dict}
_STR = frozenset((str,))


def canonical(value: Any) -> str:
    """The one JSON text for this value: equal values, equal texts, on each side of the broker."""
    if _is_plain(value):
        try:
            text = _encoder.encode(value)
        except ValueError:
            text = "-0.0"  # NaN, or an int of thousands of digits: the careful way words the error
        if "-0.0" not in text:
            return text
    return dumps(plain(value))


def _is_plain(value: Any) -> bool:
    """Whether `json` spells this value as we would. Level by level, so that most of the work is done in C."""
    level: Sequence[Any] = (value,)
    for _ in range(8):
        kinds = set(map(type, level))
        if kinds <= _ATOMS:
            return True
        # Much, deep, or with int keys (sorted as numbers, not as texts) is rare enough for the careful way.
        if not kinds <= _PLAIN or len(level) > 100_000:
            return False
        dicts = [item for item in level if type(item) is dict]
        if not all(set(map(type, item)) <= _STR for item in dicts):
            return False
        level = [child for item in level if type(item) not in _ATOMS for child in _children(item)]
    return False


def _children(item: Any) -> Iterable[Any]:
    return item.values() if type(item) is dict else item


def dumps(plain: Any) -> str:
    return _encoder.encode(plain)


def plain(value: Any, where: str = "", above: tuple[int, ...] = ()) -> Any:
    """The value in plain JSON types. `where` is its place for an error, `above` the containers around it."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return _integer(value, where)
    for types, spell in _SPELLINGS:
        if isinstance(value, types):
            return spell(value, where)
    if id(value) in above:
        raise KeyDerivationError(f"{_place(where)}the value contains itself; pass plain data")
    if len(above) >= MAX_DEPTH:
        raise KeyDerivationError(f"{_place(where)}more than {MAX_DEPTH} levels deep; pass flatter data")
    return _container(value, where, (*above, id(value)))


def _container(value: Any, where: str, above: tuple[int, ...]) -> Any:
    if isinstance(value, Mapping):
        return _mapping(value, where, above)
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{index}]", above) for index, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, f"{where}{{}}", above) for item in value), key=dumps)
    fields = _fields(value)
    if fields is None:
        raise KeyDerivationError(
            f"{_place(where)}{type(value).__qualname__} has no canonical form; name one of its fields in a template "
            "(such as '{order.id}'), pass plain data, or give a callable as key"
        )
    return {name: plain(item, f"{where}.{name}", above) for name, item in fields.items()}


def _fields(value: Any) -> dict[str, Any] | None:
    if isinstance(value, type):
        return None
    if isinstance(value, BaseModel):
        return {**{name: getattr(value, name) for name in type(value).model_fields}, **(value.model_extra or {})}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _mapping(value: Mapping[Any, Any], where: str, above: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        spelled = plain(key, f"{where} key", above)
        name = spelled if isinstance(spelled, str) else dumps(spelled)
        if name in found:
            raise KeyDerivationError(f"{_place(where)}two keys of the dict are spelled {name!r}; use one type of key")
        found[name] = plain(item, f"{where}[{name!r}]", above)
    return found


def _place(where: str) -> str:
    return f"at {where.strip()}: " if where else ""


def _enum(value: Enum, where: str) -> Any:
    return plain(value.value, where)


def _integer(value: int, where: str) -> int:
    digits(value, where)
    return int.__int__(value)


def digits(value: int, where: str = "") -> str:
    try:
        return int.__repr__(value)
    except ValueError:
        raise KeyDerivationError(f"{_place(where)}a number of thousands of digits; pass its text or a hash") from None


def _number(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise KeyDerivationError(f"{_place(where)}{value} is no number that equals itself; pass None or leave it out")
    return float.__add__(value, 0.0)  # turns -0.0 into 0.0


def _decimal(value: Decimal, where: str) -> str:
    if not value.is_finite() or abs(value.adjusted()) > _MAX_DIGITS:
        raise KeyDerivationError(f"{_place(where)}a Decimal that is not finite or has too many digits; pass its text")
    # Not `normalize()`: it rounds to the precision of the context, and two amounts would become one.
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _moment(value: datetime, where: str) -> str:
    if value.utcoffset() is None:
        return value.replace(tzinfo=None).isoformat()
    try:
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        raise KeyDerivationError(f"{_place(where)}{value!r} cannot be told in UTC; pass another time") from None


def _span(value: timedelta, where: str) -> str:
    return _decimal(Decimal(value // timedelta(microseconds=1)).scaleb(-6), where)


def _isoformat(value: date | time, _where: str) -> str:
    return value.isoformat()


def _bytes(value: bytes | bytearray | memoryview, _where: str) -> str:
    return b64encode(bytes(value)).decode("ascii")


# In this order: an IntEnum is an Enum before it is an int, a datetime is more than a date.
_SPELLINGS: tuple[tuple[Any, Callable[[Any, str], Any]], ...] = (
    (Enum, _enum),
    (str, lambda value, _where: str.__str__(value)),
    (int, _integer),
    (float, _number),
    (Decimal, _decimal),
    (UUID, lambda value, _where: str(value)),
    (datetime, _moment),
    ((date, time), _isoformat),
    (timedelta, _span),
    ((bytes, bytearray, memoryview), _bytes),
)
