"""Keys: one call, one key; two pieces of work, never one key."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import re
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from task_contract import canonical, keys
from task_contract.errors import ConfigurationError, KeyDerivationError

# A fresh machine builds Unicode tables during the first draw, and a busy one is slow: neither is a failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(str, enum.Enum):
    YES = "yes"


@dataclasses.dataclass
class Order:
    id: int
    lines: tuple[str, ...] = ()


class Customer(BaseModel):
    id: int = Field(alias="customerId")


class Opaque:
    pass


OPAQUE = Opaque()
Point = namedtuple("Point", "x y")


def charge(customer_id: Any, invoice_id: Any, cents: Any = 0) -> None:
    """The usual task."""


def order_task(order: Any) -> None:
    """A task with one argument."""


def starred(first: Any, *rest: Any, flag: Any = False, **options: Any) -> None:
    """Every kind of argument, but positional-only."""


# --- binding ---


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1, 2), {}), ((1,), {"invoice_id": 2}), ((), {"customer_id": 1, "invoice_id": 2}), ((1, 2, 0), {})],
)
def test_each_way_of_calling_binds_alike(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # A6
    assert keys.bind(charge, args, kwargs) == {"customer_id": 1, "invoice_id": 2, "cents": 0}
    assert keys.derive("{customer_id}:{invoice_id}:{cents}", charge, args, kwargs) == "1:2:0"


def test_stars_are_captured() -> None:
    # A6
    assert keys.bind(starred, (1, 2, 3), {"other": 4}) == {
        "first": 1,
        "rest": (2, 3),
        "flag": False,
        "options": {"other": 4},
    }
    assert keys.bind(starred, (1,), {}) == {"first": 1, "rest": (), "flag": False, "options": {}}


def test_positional_only_and_signatures_and_partials_bind() -> None:
    # A6
    def strict(a: Any, /, b: Any = 2) -> None: ...

    assert keys.bind(strict, (1,), {}) == {"a": 1, "b": 2}
    assert keys.bind(inspect.signature(charge), (1, 2), {})["cents"] == 0
    assert keys.bind(functools.partial(charge, 1), (2,), {})["invoice_id"] == 2
    with pytest.raises(KeyDerivationError):
        keys.bind(strict, (), {"a": 1})


def test_a_callable_that_cannot_be_hashed_binds() -> None:
    # A6
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: int) -> None: ...

    assert keys.bind(Unhashable(), (1,), {}) == {"x": 1}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3, 4), {}), ((1,), {"customer_id": 2, "invoice_id": 3}), ((1, 2), {"unknown": 3})],
)
def test_a_call_that_does_not_fit_shows_the_signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # A6
    with pytest.raises(KeyDerivationError, match=re.escape("charge(customer_id")):
        keys.bind(charge, args, kwargs)


# --- the key ---


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        ("plain-Value_1.0", "plain-Value_1.0"),
        ("a:b", "a%3Ab"),
        ("a/b c", "a%2Fb%20c"),
        ("~null", "%7Enull"),
        ("100%", "100%25"),
        ("é", "%C3%A9"),
        ("\n", "%0A"),
        ("\ud800", "%ED%A0%80"),
        ("", "~empty"),
        (None, "~null"),
        (True, "~true"),
        (False, "~false"),
        (1, "1"),
        (-7, "-7"),
        (1.5, "1.5"),
        (-0.0, "0.0"),
        (Decimal("1.00"), "1"),
        (Decimal("-12.50"), "-12.5"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (date(2030, 1, 31), "2030-01-31"),
        (datetime(2030, 1, 31, 12, tzinfo=timezone.utc), "2030-01-31T12%3A00%3A00Z"),
        (Colour.RED, "red"),
        (Level.HIGH, "3"),
        (Word.YES, "yes"),
        ([1, "a"], "~%5B1%2C%22a%22%5D"),
        ((1, "a"), "~%5B1%2C%22a%22%5D"),
        ({"b": 1, "a": 2}, "~%7B%22a%22%3A2%2C%22b%22%3A1%7D"),
        ({}, "~%7B%7D"),
    ],
)
def test_spelling_of_a_value(value: Any, spelled: str) -> None:
    # A6
    assert keys.derive("order", order_task, (value,), {}) == spelled
    assert keys.derive("x:{order}:y", order_task, (), {"order": value}) == f"x:{spelled}:y"


@pytest.mark.parametrize(
    ("spec", "args", "key"),
    [
        ("customer_id", (1, 2), "1"),
        (("customer_id", "invoice_id"), (1, 2), "1:2"),
        (["customer_id", "invoice_id"], (1, 2), "1:2"),
        (("customer_id",), ("a:b", 2), "a%3Ab"),
        ("{customer_id}:{invoice_id}:charge", ("c", "i"), "c:i:charge"),
        ("{{{customer_id}}}", (1, 2), "{1}"),
        ("{customer_id}-{invoice_id}", ("a-b", -1), "a%2Db-%2D1"),
        ("{customer_id}.x.{invoice_id}", ("a.b", "c_d"), "a%2Eb.x.c_d"),
        ("{customer_id[id]}", ({"id": 9}, 2), "9"),
        ("{customer_id[0]}", (["z"], 2), "z"),
        ("{customer_id[1]}", ({1: "int key"}, 2), "int%20key"),
        ("{customer_id.id}/{invoice_id.lines[0]}", (Order(4), Order(1, ("l",))), "4/l"),
    ],
)
def test_names_and_templates(spec: Any, args: tuple[Any, ...], key: str) -> None:
    # A6
    assert keys.derive(spec, charge, args, {}) == key


def test_names_inside_stars_are_found() -> None:
    # A6
    assert keys.derive("{first}:{tenant}", starred, (1,), {"tenant": "t"}) == "1:t"
    with pytest.raises(KeyDerivationError, match="needs the argument 'tenant'"):
        keys.derive("{first}:{tenant}", starred, (1,), {})


@pytest.mark.parametrize(
    ("result", "key"),
    [
        ("order:1/mail", "order:1/mail"),
        ("with space:é", "with%20space:%C3%A9"),
        ("~true", "%7Etrue"),
        (7, "7"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (("a:b", 1, None), "a%3Ab:1:~null"),
        (Word.YES, "yes"),
    ],
)
def test_what_a_callable_returns(result: Any, key: str) -> None:
    # A6
    assert keys.derive(lambda *args, **kwargs: result, charge, (1, 2), {}) == key


def test_a_callable_is_called_like_the_task() -> None:
    # A6
    seen: list[Any] = []

    def key(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "key"

    keys.derive(key, charge, (1,), {"invoice_id": 2})
    assert seen == [((1,), {"invoice_id": 2})]


@pytest.mark.parametrize("result", [None, "", (), Opaque(), float("nan")])
def test_a_callable_without_an_answer_is_an_error(result: Any) -> None:
    # A6
    with pytest.raises(KeyDerivationError, match="gave no key"):
        keys.derive(lambda *args: result, charge, (1, 2), {})


def test_a_callable_that_raises_is_an_error_with_its_cause() -> None:
    # A6
    def broken(*args: Any) -> str:
        raise LookupError("no such customer")

    with pytest.raises(KeyDerivationError, match=r"broken.*no such customer") as caught:
        keys.derive(broken, charge, (1, 2), {})
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_long_key_becomes_its_hash() -> None:
    # A6
    assert keys.derive("order", order_task, ("x" * 200,), {}) == "x" * 200
    assert re.fullmatch("[0-9a-f]{64}", keys.derive("order", order_task, ("x" * 201,), {}))
    assert re.fullmatch("[0-9a-f]{64}", keys.derive(lambda order: order, order_task, ("x" * 201,), {}))


circular: list[Any] = []
circular.append(circular)
deep: list[Any] = []
for _ in range(100):
    deep = [deep]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Opaque(), "Opaque has no canonical form"),
        (Opaque, "no canonical form"),
        ({"a": [Opaque()]}, r"\['a'\]\[0\]: Opaque"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ({"price": float("nan")}, "price"),
        (Decimal("NaN"), "Decimal"),
        (Decimal("1E+999999"), "too many digits"),
        pytest.param(10**5000, "digits", id="huge"),  # pytest cannot print it either
        ([10**5000], "digits"),
        (circular, "contains itself"),
        (deep, "64 levels"),
        ({1: "a", "1": "b"}, "spelled '1'"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), "UTC"),
    ],
)
def test_what_cannot_be_keyed_names_the_argument(value: Any, says: str) -> None:
    # A6
    with pytest.raises(KeyDerivationError, match=rf"(?s)order_task: \{{order\}} cannot be part of a key.*{says}"):
        keys.derive("order", order_task, (value,), {})


@pytest.mark.parametrize("template", ["{order.nothing}", "{order[nothing]}", "{order.id.real.nothing}"])
def test_a_path_that_leads_nowhere(template: str) -> None:
    # A6
    with pytest.raises(KeyDerivationError, match="leads nowhere"):
        keys.derive(template, order_task, (Order(1),), {})


# --- ambiguity ---

values = st.one_of(
    st.text(max_size=8),
    st.text(alphabet="ab:-_.~%{}/", max_size=6),
    st.integers(min_value=-99, max_value=99).map(str),
    st.none(),
    st.booleans(),
    st.lists(st.text(max_size=3), max_size=2),
)
TEMPLATES = [
    ("customer_id", "invoice_id"),
    "{customer_id}:{invoice_id}",
    "{customer_id}-{invoice_id}",
    "{customer_id}_{invoice_id}",
    "{customer_id}a.b{invoice_id}",
    "p{customer_id}%/%{invoice_id}s",
]


@patient
@given(st.sampled_from(TEMPLATES), st.tuples(values, values), st.tuples(values, values))
def test_two_calls_share_a_key_only_if_they_are_one(spec: Any, one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    # A6
    same = keys.derive(spec, charge, one, {}) == keys.derive(spec, charge, other, {})
    assert same == (repr(one) == repr(other))


@patient
@given(st.sampled_from(TEMPLATES), st.text(alphabet="ab:-_.~%", max_size=9), st.data())
def test_no_cut_of_one_text_gives_the_same_key(spec: Any, text: str, data: st.DataObject) -> None:
    # A6: the same characters, cut at another place, are other work
    cut, other = (data.draw(st.integers(0, len(text))) for _ in range(2))
    one = keys.derive(spec, charge, (text[:cut], text[cut:]), {})
    two = keys.derive(spec, charge, (text[:other], text[other:]), {})
    assert (one == two) == (cut == other)


@patient
@given(values)
def test_a_key_is_printable_ascii_and_bounded(value: Any) -> None:
    # A6: it can be handed to an API as it is
    key = keys.derive("{order}:x", order_task, (value,), {})
    assert re.fullmatch(r"[!-~]{1,200}", key)


@patient
@given(st.text(), st.text())
def test_texts_of_a_callable_stay_apart(one: str, other: str) -> None:
    # A6
    if one and other:
        spelled = [keys.derive(lambda order: order, order_task, (text,), {}) for text in (one, other)]
        assert (spelled[0] == spelled[1]) == (one == other)


# --- specs ---


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{customer_id", "every '{' needs its '}'"),
        ("customer_id}", "close the brace"),
        ("{customer_id}}", "every '{' needs its '}'"),
        ("{}", "should name an argument"),
        ("{0}", "should name an argument"),
        ("{customer_id!r}", "format or conversion"),
        ("{customer_id:>3}", "format or conversion"),
        ("{customer_id.__class__}", "private"),
        ("{customer_id[_x]}", "private"),
        ("{_customer}", "private"),
        ("{customer id}", "should name an argument"),
        ("{customer_id}{invoice_id}", "nothing keeps"),
        ("{customer_id}x{invoice_id}", "nothing keeps"),
        ("{customer_id}%{invoice_id}", "nothing keeps"),
        ("{customer_id}~{invoice_id}", "nothing keeps"),
        ("{customer_id} {invoice_id}", "without spaces"),
        ("{customer_id}é", "ASCII"),
        ("{{literal}}", "names no argument"),
        ("order-id", "not an argument name"),
        ("", "not an argument name"),
        ((), "not an argument name"),
        (("a", "b c"), "'b c' is not an argument name"),
        (("a", 1), "should be an argument name"),
        (7, "should be an argument name"),
        (None, "should be an argument name"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(spec: Any, says: str) -> None:
    # A6
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        keys.check_syntax(spec)


@pytest.mark.parametrize("spec", ["customer_id", "{cents}", ("customer_id", "cents"), ["cents"], charge])
def test_a_spec_that_fits_is_accepted(spec: Any) -> None:
    # A6
    keys.check_spec(spec, charge)


@pytest.mark.parametrize("spec", ["order_id", "{order_id}", "{order_id.x}", ("cents", "order_id")])
def test_an_unknown_argument_is_named_with_the_known_ones(spec: Any) -> None:
    # A6
    with pytest.raises(ConfigurationError, match=r"'order_id', which charge .* customer_id, invoice_id, cents"):
        keys.check_spec(spec, charge)
    keys.check_spec(spec, lambda **anything: None)


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        (lambda customer_id, invoice_id, cents=0: 1, True),
        (lambda *args: 1, True),
        (lambda customer_id, **rest: 1, True),
        (lambda one, two, three: 1, True),
        (lambda customer_id: 1, False),
        (lambda: 1, False),
    ],
)
def test_a_callable_must_take_what_the_task_takes(spec: Callable[..., Any], fits: bool) -> None:
    # A6
    if fits:
        keys.check_spec(spec, charge)
    else:
        with pytest.raises(ConfigurationError, match="same parameters"):
            keys.check_spec(spec, charge)


# --- explicit, child and store keys ---


@pytest.mark.parametrize(
    ("key", "kept"), [("order:1", "order:1"), ("with space é", "with space é"), ("x" * 200, "x" * 200)]
)
def test_an_explicit_key_is_kept(key: str, kept: str) -> None:
    # A6
    assert keys.explicit(key) == kept


def test_a_long_explicit_key_is_hashed() -> None:
    # A6
    assert re.fullmatch("[0-9a-f]{64}", keys.explicit("x" * 201))


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "a\x00", "\x7f", "\ud800", "\u2028", 7, None, b"bytes"])
def test_an_explicit_key_that_is_none(key: object) -> None:
    # A6
    with pytest.raises(KeyDerivationError, match="idempotency_key"):
        keys.explicit(key)


@patient
@given(st.text(), st.text(), st.text(), st.text())
def test_store_keys_are_apart(a: str, b: str, c: str, d: str) -> None:
    # A6
    assert (keys.store_key(a, b) == keys.store_key(c, d)) == ((a, b) == (c, d))


def test_the_store_key_knows_where_the_type_ends() -> None:
    # A6
    assert keys.store_key("a:b", "c") != keys.store_key("a", "b:c")
    assert keys.store_key("ab", "c") != keys.store_key("a", "bc")
    assert keys.store_key("1", "1:1") != keys.store_key("11", ":1")
    assert re.fullmatch(r"[A-Za-z0-9_-]{27}", keys.store_key("a", "b"))
    # Written down: another spelling in a later release would orphan every record.
    assert keys.store_key("shop.charge", "1:2:charge") == "800jz0g_iLXNvKbEDGHuqCjCY4A"


def test_a_child_key_is_stable_and_apart() -> None:
    # A6, and DESIGN 3 rule 2
    assert keys.child_key("order:1", "chain.0") == keys.child_key("order:1", "chain.0") == "order:1>chain.0"
    assert keys.child_key("a>b", "c") != keys.child_key("a", "b>c")
    assert len(keys.child_key("x" * 200, "1")) == 64
    assert len(keys.explicit(keys.child_key("x" * 190, "link.1"))) <= 200


# --- canonical JSON ---


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
        ((1, 2), "[1,2]"),
        ({1: "a", 10: "b", 2: "c"}, '{"1":"a","10":"b","2":"c"}'),
        ({True: 1, None: 2, 1.5: 3}, '{"1.5":3,"null":2,"true":1}'),
        ({Colour.RED: 1, "z": 2}, '{"red":1,"z":2}'),
        ({(1, 2): 3}, '{"[1,2]":3}'),
        (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        (Point(1, 2), "[1,2]"),
        (Level.HIGH, "3"),
        ([Level.HIGH, Word.YES, Colour.RED], '[3,"yes","red"]'),
        (datetime(2030, 1, 1, 1, 30, tzinfo=None), '"2030-01-01T01:30:00"'),  # noqa: DTZ001 (naive on purpose)
        (datetime(2030, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2))), '"2029-12-31T23:30:00Z"'),
        (date(2030, 1, 1), '"2030-01-01"'),
        (time(1, 30), '"01:30:00"'),
        (timedelta(minutes=1, milliseconds=500), '"60.5"'),
        (timedelta(days=-1), '"-86400"'),
        (Decimal("1E+3"), '"1000"'),
        (Decimal("0.000"), '"0"'),
        (Decimal("-0"), '"0"'),
        (Decimal("100"), '"100"'),
        (UUID(int=0), '"00000000-0000-0000-0000-000000000000"'),
        (b"\x00\xff", '"AP8="'),
        (bytearray(b"\x00\xff"), '"AP8="'),
        ({"s": {3, 1, 2}}, '{"s":[1,2,3]}'),
        (frozenset({"b", "a"}), '["a","b"]'),
        (Order(1, ("x",)), '{"id":1,"lines":["x"]}'),
        (Customer(customerId=3), '{"id":3}'),
        (-0.0, "0.0"),
        ([-0.0, -0.05, "-0.0"], '[0.0,-0.05,"-0.0"]'),
        ("é", '"\\u00e9"'),
    ],
)
def test_one_spelling(value: Any, text: str) -> None:
    # A6
    assert canonical.canonical(value) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal("1.0"), Decimal("1.00")),
        (datetime(2030, 1, 1, 12, tzinfo=timezone.utc), datetime(2030, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))),
        ((1, [2]), [1, (2,)]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: 2, 10: 3}, {"1": 2, "10": 3}),
        ({f"member {n}" for n in range(50)}, sorted(f"member {n}" for n in range(50))),
    ],
)
def test_equal_values_equal_texts(one: Any, other: Any) -> None:
    # A6
    assert canonical.canonical(one) == canonical.canonical(other)


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, "1"), (0, None), (1, 1.0), (Decimal("1." + "0" * 40 + "1"), Decimal(1))]
)
def test_other_values_other_texts(one: Any, other: Any) -> None:
    # A6
    assert canonical.canonical(one) != canonical.canonical(other)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@patient
@given(plain)
def test_canonical_survives_the_broker(value: Any) -> None:
    # A6: what the producer hashed is what the worker hashes after JSON
    try:
        text = canonical.canonical(value)
    except KeyDerivationError as error:
        assert "spelled" in str(error)  # noqa: PT017 (the one refusal that is right here: 1 and "1" in one dict)
    else:
        assert canonical.canonical(json.loads(json.dumps(value))) == text == canonical.canonical(json.loads(text))


@patient
@given(plain)
def test_the_fast_and_the_careful_way_agree(value: Any) -> None:
    # A6
    try:
        careful = canonical.dumps(canonical.plain(value))
    except KeyDerivationError:
        with pytest.raises(KeyDerivationError):
            canonical.canonical(value)
    else:
        assert canonical.canonical(value) == careful


def test_depth_is_bounded_and_the_bound_is_the_same_for_all_types() -> None:
    # A6
    fits: Any = 1
    for _ in range(canonical.MAX_DEPTH):
        fits = [fits]
    assert canonical.canonical(fits).count("[") == canonical.MAX_DEPTH
    with pytest.raises(KeyDerivationError, match="levels deep"):
        canonical.canonical([fits])
    many_loops: list[Any] = []
    many_loops.extend([many_loops] * 50)
    with pytest.raises(KeyDerivationError, match="contains itself"):
        canonical.canonical(many_loops)


# --- the payload hash ---


def test_the_hash_ignores_how_the_call_was_written() -> None:
    # A6, and DESIGN 3 rule 6
    one = keys.payload_hash(charge, (1, 2), {})
    assert one == keys.payload_hash(charge, (1,), {"invoice_id": 2}) == keys.payload_hash(charge, [1, 2, 0], {})
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", one)
    assert one == "tJLnuBcw3hiNq6sikG7gcg"  # written down: records outlive a release


@pytest.mark.parametrize("args", [(1, 3), (2, 1), ("1", 2), (1, 2, 5), (1, 2, None), (1, 2, False)])
def test_the_hash_tells_other_arguments(args: tuple[Any, ...]) -> None:
    # A6
    assert keys.payload_hash(charge, args, {}) != keys.payload_hash(charge, (1, 2), {})


def test_a_new_argument_with_a_default_keeps_the_hash() -> None:
    # A6: a rolling deploy must not turn waiting work into a mismatch
    def before(x: Any) -> None: ...

    def after(x: Any, tags: Any = (), sentinel: Any = OPAQUE) -> None: ...

    old = keys.payload_hash(before, (1,), {})
    assert old == keys.payload_hash(after, (1,), {}) == keys.payload_hash(after, (1, []), {})
    assert old != keys.payload_hash(after, (1, ["t"]), {})


@pytest.mark.parametrize(
    ("fn", "args"), [(None, (1, 2)), (charge, (1, Opaque())), (charge, (1,)), (charge, (circular, 1)), (dict.get, (1,))]
)
def test_no_hash_where_there_is_none_to_be_had(fn: Any, args: tuple[Any, ...]) -> None:
    # A6
    assert keys.payload_hash(fn, args, {}) == ""


def test_an_argument_that_raises_when_looked_at_does_not_stop_the_call() -> None:
    # A6
    class Hostile(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("no")

    assert keys.payload_hash(charge, (Hostile(a=1), 2), {}) == ""


@patient
@given(st.tuples(plain, plain), st.tuples(plain, plain))
def test_equal_hashes_mean_equal_payloads(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    # A6
    hashes = [keys.payload_hash(charge, args, {}) for args in (one, other)]
    if "" not in hashes:
        assert (hashes[0] == hashes[1]) == (canonical.canonical(one) == canonical.canonical(other))
