"""Which errors are worth another try (E6): the order of precedence, rules, groups, and errors that bite."""

from __future__ import annotations

import asyncio
import sys
import time
import urllib.error
import urllib.request
from datetime import timedelta
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import sqlalchemy
import sqlalchemy.exc
import sqlalchemy.orm.exc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from task_contract import errors, known_errors
from task_contract.classify import Classification, Rules, _classify, classify
from task_contract.peek import LONGEST_CHAIN
from task_contract.policy import Policy
from tests.core.raising import caught, raised

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

# ---- the order of precedence -----------------------------------------------------------------------------------------


class ShopError(Exception):
    pass


class OutOfStock(ShopError):
    pass


def response_error(status: int, **headers: str) -> BaseException:
    response = httpx.Response(status, headers=headers, request=httpx.Request("GET", "http://x"))
    return caught(response.raise_for_status)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (raised(ShopError(), httpx.ReadTimeout("slow")), "transient"),
        (raised(ShopError(), response_error(404)), "permanent"),
        (raised(ShopError(), raised(OutOfStock(), response_error(503))), "transient"),
        (raised(ShopError(), raised(OutOfStock(), RuntimeError())), "unclassified"),
        # The outermost that is known settles it.
        (raised(ValueError(), httpx.ReadTimeout("slow")), "permanent"),
        (raised(TimeoutError(), ValueError()), "transient"),
        # What is raised to say it says it from inside, too; the outermost of the two counts.
        (raised(ValueError(), errors.RetryableError()), "transient"),
        (raised(TimeoutError(), errors.NonRetryableError()), "permanent"),
        (raised(errors.RetryableError(), errors.NonRetryableError()), "transient"),
        (raised(errors.NonRetryableError(), errors.RetryableError()), "permanent"),
        (raised(errors.NonRetryableError(), response_error(503)), "permanent"),
        (raised(errors.RetryableError(), response_error(404)), "transient"),
    ],
    ids=lambda value: f"{value!r} from {value.__cause__!r}" if isinstance(value, BaseException) else value,
)
def test_causes_are_walked(error: BaseException, kind: str) -> None:  # E6
    assert classify(error).kind == kind


@pytest.mark.parametrize(("base", "status", "kind"), [(ValueError, 503, "transient"), (TimeoutError, 404, "permanent")])
def test_status_counts_more_than_the_name(base: type[Exception], status: int, kind: str) -> None:  # E6
    error = base()
    error.__dict__["status_code"] = status
    assert classify(error).kind == kind


def test_context_is_not_a_cause() -> None:  # E6
    def fail() -> None:
        try:
            raise TimeoutError
        except TimeoutError:
            raise ShopError  # noqa: B904  without `from` is the point

    error = caught(fail)
    assert isinstance(error.__context__, TimeoutError)
    assert classify(error).kind == "unclassified"


def test_status_and_retry_after_are_taken_from_the_cause() -> None:  # A13, A16
    found = classify(raised(errors.RetryableError(), response_error(429, **{"Retry-After": "30"})))
    assert (found.status, found.retry_after, found.rate_limited) == (429, 30.0, True)
    found = classify(raised(errors.RetryableError(retry_after=5), response_error(429, **{"Retry-After": "30"})))
    assert found.retry_after == 5.0


@pytest.mark.parametrize(
    ("retry_on", "dead_on", "error", "kind"),
    [
        ((ShopError,), (), ShopError(), "transient"),
        ((ShopError,), (), OutOfStock(), "transient"),
        ((), (ShopError,), OutOfStock(), "permanent"),
        # The closer class wins.
        ((ShopError,), (OutOfStock,), OutOfStock(), "permanent"),
        ((ShopError,), (OutOfStock,), ShopError(), "transient"),
        ((OutOfStock,), (ShopError,), OutOfStock(), "transient"),
        ((OutOfStock,), (ShopError,), ShopError(), "permanent"),
        # Over what the suite knows,
        ((ValueError,), (), ValueError(), "transient"),
        ((Exception,), (), response_error(404), "transient"),
        ((), (TimeoutError,), TimeoutError(), "permanent"),
        ((), (httpx.HTTPError,), response_error(503), "permanent"),
        # but not over what is raised to say it.
        ((errors.NonRetryableError,), (), errors.NonRetryableError(), "permanent"),
        ((), (Exception,), errors.RetryableError(), "transient"),
        # The cause is asked when nothing is known of the error itself.
        ((OutOfStock,), (), raised(ShopError(), OutOfStock()), "transient"),
        ((OutOfStock,), (), raised(ValueError(), OutOfStock()), "permanent"),
    ],
)
def test_policy(
    retry_on: tuple[type[BaseException], ...], dead_on: tuple[type[BaseException], ...], error: BaseException, kind: str
) -> None:  # E6
    assert classify(error, Policy(retry_on=retry_on, dead_on=dead_on)).kind == kind


def test_policy_tie_is_dead() -> None:  # E6
    # Policy refuses such a pair; another object with the same fields may not.
    policy: Any = SimpleNamespace(retry_on=(ShopError,), dead_on=(ShopError,))
    assert classify(ShopError(), policy).kind == "permanent"


def test_rules_come_after_the_policy_and_before_the_rest() -> None:  # E6
    rules = Rules()
    rules.add(httpx.HTTPStatusError, "transient")
    rules.add(ValueError, "transient")
    rules.add(Exception, "permanent")
    assert classify(response_error(404), rules=rules).kind == "transient"
    assert classify(ValueError(), rules=rules).kind == "transient"
    assert classify(ValueError(), Policy(dead_on=(ValueError,)), rules).kind == "permanent"
    assert classify(TimeoutError(), rules=rules).kind == "permanent"
    assert classify(errors.RetryableError(), rules=rules).kind == "transient"
    assert classify(raised(errors.RetryableError(), ValueError()), rules=rules).kind == "transient"


@pytest.mark.parametrize(
    ("match", "error", "kind"),
    [
        (ShopError, OutOfStock(), "transient"),
        ((OutOfStock, KeyError), OutOfStock(), "transient"),
        ((OutOfStock, KeyError), ShopError(), "unclassified"),
        (lambda error: "busy" in str(error), ShopError("busy"), "transient"),
        (lambda error: "busy" in str(error), ShopError("idle"), "unclassified"),
        (lambda error: error.no_such_attribute, ShopError(), "unclassified"),
    ],
)
def test_rules_match(match: Any, error: BaseException, kind: str) -> None:  # E6
    rules = Rules()
    rules.add(match, "transient")
    assert classify(error, rules=rules).kind == kind


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        (lambda error: 7, 7.0),
        (lambda error: timedelta(minutes=1), 60.0),
        (lambda error: "9", 9.0),
        (lambda error: None, None),
    ],
)
def test_rules_know_how_long(retry_after: Any, seconds: float | None) -> None:  # A13
    rules = Rules()
    rules.add(ShopError, "transient", retry_after=retry_after)
    assert classify(ShopError(), rules=rules).retry_after == seconds


def test_rule_as_a_decorator() -> None:  # E6
    rules = Rules()

    @rules.rule
    def stock(error: BaseException) -> Classification | None:
        if not isinstance(error, OutOfStock):
            return None
        return Classification("transient", status=503, retry_after=60.0, because="it comes back on Monday")

    assert classify(OutOfStock(), rules=rules) == Classification("transient", 503, 60.0, "it comes back on Monday")
    assert stock(ShopError()) is None
    assert classify(ShopError(), rules=rules).kind == "unclassified"


@pytest.mark.parametrize("answer", [ZeroDivisionError, True, "retry", 5, "unclassified"])
def test_broken_rules_are_logged_and_skipped(caplog: pytest.LogCaptureFixture, answer: Any) -> None:  # E6
    rules = Rules()

    @rules.rule
    def broken(error: BaseException) -> Any:
        if answer is ZeroDivisionError:
            raise answer
        return answer

    rules.add(ShopError, "permanent")
    assert classify(ShopError(), rules=rules).kind == "permanent"
    assert "broken" in caplog.text
    assert "skipped" in caplog.text


@pytest.mark.parametrize(
    ("match", "kind"), [(ShopError, "retry"), (5, "transient"), (int, "transient"), ((), "transient")]
)
def test_impossible_rules_are_refused(match: Any, kind: Any) -> None:  # E6
    with pytest.raises(errors.ConfigurationError):
        Rules().add(match, kind)


# ---- ExceptionGroup --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "kind", "retry_after"),
    [
        ([TimeoutError(), ConnectionError()], "transient", None),
        ([TimeoutError(), ValueError()], "permanent", None),
        ([TimeoutError(), RuntimeError()], "transient", None),
        ([RuntimeError()], "unclassified", None),
        ([ExceptionGroup("inner", [TimeoutError(), KeyError()])], "permanent", None),
        (
            [errors.RetryableError(retry_after=3), errors.RetryableError(retry_after=9), TimeoutError()],
            "transient",
            9.0,
        ),
        ([raised(ShopError(), TimeoutError())], "transient", None),
        ([raised(ShopError(), ExceptionGroup("cause", [TimeoutError()]))], "unclassified", None),
    ],
)
def test_groups(members: list[Exception], kind: str, retry_after: float | None) -> None:  # E6
    for error in (ExceptionGroup("outer", members), raised(ShopError(), ExceptionGroup("outer", members))):
        found = classify(error)
        assert (found.kind, found.retry_after) == (kind, retry_after)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.TaskGroup is new in Python 3.11")
def test_real_task_group() -> None:  # E6
    async def fail() -> None:
        raise TimeoutError

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(fail())

    assert classify(caught(lambda: asyncio.run(both()))).kind == "transient"


def test_enormous_groups_are_bounded() -> None:  # E6
    group: Exception = ExceptionGroup("bottom", [TimeoutError()] * 10_000)
    for _ in range(500):
        group = ExceptionGroup("level", [group] * 20)
    start = time.perf_counter()
    classify(group)
    assert time.perf_counter() - start < 2


# ---- never raises ----------------------------------------------------------------------------------------------------


def test_circles_and_enormous_chains() -> None:  # E6
    first, second = ShopError(), ShopError()
    first.__cause__, second.__cause__ = second, first
    assert classify(first).kind == "unclassified"
    first.__cause__ = first
    assert classify(first).kind == "unclassified"
    for length, kind in ((LONGEST_CHAIN, "transient"), (LONGEST_CHAIN + 1, "unclassified"), (100_000, "unclassified")):
        chain: BaseException = TimeoutError()
        for _ in range(length - 1):
            outer = ShopError()
            outer.__cause__ = chain
            chain = outer
        assert classify(chain).kind == kind
        while chain.__cause__ is not None:  # link by link: freeing a long chain at once overflows the C stack
            chain.__cause__, chain = None, chain.__cause__


def test_wrappers_of_themselves() -> None:  # E6
    wrapper = sqlalchemy.exc.OperationalError("SELECT 1", {}, None)  # type: ignore[arg-type]
    wrapper.orig = wrapper
    assert classify(wrapper).kind == "transient"
    url_error = urllib.error.URLError("?")
    url_error.reason = url_error  # type: ignore[assignment]
    assert classify(url_error).kind == "unclassified"


def bite(*_: object, **__: object) -> Any:
    raise RuntimeError("do not touch")


class Hostile(Exception):
    __str__ = __repr__ = __eq__ = __hash__ = __bool__ = bite  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        bite()


class Liar(ValueError):
    @property
    def __class__(self) -> Any:
        bite()


class BadMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__mro__", "__module__", "__qualname__"):
            bite()
        return super().__getattribute__(name)


class Unnamed(TimeoutError, metaclass=BadMeta):
    pass


# By name: pytest looks at its parameters, and these bite it too.
@pytest.mark.parametrize(
    ("name", "kind"), [("Hostile", "unclassified"), ("Liar", "permanent"), ("Unnamed", "transient")]
)
def test_hostile_errors(caplog: pytest.LogCaptureFixture, name: str, kind: str) -> None:  # E6
    found = classify(globals()[name]()).kind
    assert found == kind
    assert not caplog.records


def test_the_net_below(caplog: pytest.LogCaptureFixture) -> None:  # E6
    policy: Any = object()  # no policy at all
    assert classify(TimeoutError(), policy).kind == "unclassified"
    assert "could not be classified" in caplog.text


def test_interrupts_pass_through() -> None:  # E6
    class Interrupted(Exception):
        @property
        def status_code(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        classify(Interrupted())


READ_NAMES = [
    *("status_code", "status", "http_status", "code", "response", "resp", "meta", "grpc_status_code"),
    *("headers", "retry_after", "trailing_metadata"),
    *("args", "errno", "sqlstate", "pgcode", "orig", "reason", "kwargs", "smtp_code", "recipients"),
    *("exceptions", "connection_invalidated", "__cause__", "__dict__"),
]
PACKAGES = sorted(set(known_errors._TRANSIENT) | {"urllib", "shop"})
NAMES = sorted({name for _, name in known_errors._KNOWN})


class Bites:
    __call__ = __iter__ = __len__ = __getitem__ = __eq__ = __hash__ = __str__ = bite  # type: ignore[assignment]
    items = get = name = status_code = headers = property(bite)


class Number(int):
    __le__ = __ge__ = __lt__ = __gt__ = __int__ = __eq__ = __hash__ = __float__ = bite  # type: ignore[assignment]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(100, 599)
    | st.floats()
    | st.text()
    | st.binary()
    | st.timedeltas()
    | st.datetimes()
    | st.sampled_from([bite, Bites, HTTPStatus.OK, grpc.StatusCode.ABORTED, TimeoutError()])
    | st.builds(Bites)
    | st.builds(Number, st.just(503))
)
HEADER_NAMES = st.sampled_from(["Retry-After", "retry-after-ms", "Error", "Code", "ResponseMetadata", "HTTPStatusCode"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(HEADER_NAMES | st.text(max_size=5), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(lambda value: lambda: value, inner)
        | st.builds(
            lambda items: SimpleNamespace(**items), st.dictionaries(st.sampled_from(READ_NAMES), inner, max_size=3)
        )
    ),
    max_leaves=8,
)


@st.composite
def weird_errors(draw: st.DrawFn) -> BaseException:
    base = draw(st.sampled_from([Exception, OSError, ValueError, errors.RetryableError, urllib.error.URLError]))
    body: dict[str, object] = {"__module__": draw(st.sampled_from(PACKAGES)), "__init__": lambda self: None}
    for name in draw(st.lists(st.sampled_from(READ_NAMES), max_size=5)):
        value = draw(VALUES)
        body[name] = draw(
            st.sampled_from([property(bite), property(lambda self, value=value: value), property(lambda self: self)])
        )
    body.update(dict.fromkeys(draw(st.lists(st.sampled_from(["__str__", "__getattr__", "__eq__"]), max_size=2)), bite))
    error: BaseException = type(draw(st.sampled_from(NAMES)), (base,), body)()
    return error


# A busy machine is slow to make such errors up; that is no finding.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300)
@given(weird_errors(), st.floats(allow_nan=False, allow_infinity=False))
def test_never_raises(error: BaseException, now: float) -> None:  # E6
    # Past the net that `classify` spreads below it: nothing should ever fall into that.
    found = _classify(error, Policy(), (), now)
    assert found.kind in ("transient", "permanent", "unclassified")
    assert found.status is None or 100 <= found.status <= 599
    assert found.retry_after is None or found.retry_after >= 0
