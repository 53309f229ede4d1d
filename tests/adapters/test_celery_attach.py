"""Attaching to a Celery app, and what is published; no worker runs here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, chain, shared_task
from celery.exceptions import OperationalError
from celery.signals import before_task_publish

import celery_contract
from celery_contract import ContractTask
from celery_contract.install import find_store
from celery_contract.task import Contracted
from task_contract import AlreadyEnqueued, Contract, Policy, current_run
from task_contract.errors import DelayTooLong, PayloadTooLarge

POLICY = Policy(key="order")


@pytest.fixture
def app() -> Iterator[Celery]:
    made = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield made
    celery_contract.uninstall(made)


@pytest.fixture
def contract(app: Celery) -> Contract:
    return celery_contract.install(app, store="memory://")


@pytest.fixture
def published() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    def note(headers: dict[str, Any], **_: Any) -> None:
        found.append(headers)

    before_task_publish.connect(note)
    yield found
    before_task_publish.disconnect(note)


def charge(order: str, cents: int = 0) -> str:
    return f"receipt {order}"


def make(app: Celery, fn: Any = charge, **options: Any) -> Any:
    return app.task(fn, shared=False, **options)


def named(self: Any, order: str) -> str:
    return str(self.name)


def broken(order: str) -> None:
    raise KeyError(order)


class Audited(Task):
    """A user's own base class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return f"audited {super().__call__(*args, **kwargs)}"


class Refund(Task):
    name = "refund"

    def run(self, order: str) -> str:
        return f"refund {order}"


def test_every_kind_of_task_is_covered(app: Celery) -> None:  # attach
    before = make(app, name="before")
    celery_contract.install(app, store="memory://")
    after = make(app, name="after")
    bound = make(app, named, name="bound", bind=True)
    audited = make(app, name="audited", base=Audited)
    refund = app.register_task(Refund())
    shared = shared_task(charge, name="shared")
    app.finalize()
    for task in (before, after, bound, audited, refund, app.tasks["shared"]):
        assert isinstance(app.tasks[task.name], Contracted), task.name
    assert shared.name in app.tasks
    assert not any(isinstance(task, Contracted) for name, task in app.tasks.items() if name.startswith("celery."))


def test_a_users_own_base_still_runs(app: Celery, contract: Contract) -> None:  # attach
    audited = make(app, name="audited", base=Audited, contract=POLICY)
    assert audited.apply(("1",)).get() == "audited receipt 1"
    assert audited("1") == "audited receipt 1", "a direct call is the user's own"


def test_install_again_is_harmless_and_uninstall_undoes_it(app: Celery, contract: Contract) -> None:  # attach
    task = make(app, name="task")
    app.finalize()
    assert celery_contract.install(app) is contract
    assert type(app.tasks["task"]).__mro__.count(Contracted) == 1
    celery_contract.uninstall(app)
    assert not isinstance(app.tasks["task"], Contracted)
    assert app.send_task.__func__ is Celery.send_task
    assert task("1") == "receipt 1"


def test_two_apps_do_not_mix(app: Celery, contract: Contract, published: list[dict[str, Any]]) -> None:  # attach
    other = Celery("other", broker="memory://", set_as_current=False)
    plain, ours = make(other, name="plain"), make(app, name="ours")
    plain.delay("1")
    ours.delay("1")
    assert ["contract" in headers for headers in published] == [False, True]
    assert not isinstance(other.tasks["plain"], Contracted)


def test_the_base_class_alone_attaches_to_its_task_only(
    app: Celery, published: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:  # base-class swap
    monkeypatch.setenv("TASK_CONTRACT_STORE", "memory://")
    swapped, plain = make(app, name="swapped", base=ContractTask), make(app, name="plain")
    swapped.delay("1")
    plain.delay("1")
    assert ["contract" in headers for headers in published] == [True, False]
    assert (swapped.acks_late, plain.acks_late) == (True, False)


@pytest.mark.parametrize(
    ("options", "configured", "adjust", "expected"),
    [
        ({"contract": POLICY}, {}, True, (True, True)),
        ({}, {}, True, (False, None)),
        ({"contract": POLICY, "acks_late": False}, {}, True, (False, True)),
        ({"contract": POLICY}, {}, False, (False, None)),
        ({"contract": POLICY}, {"task_acks_late": True}, True, (True, True)),
    ],
)
def test_only_what_was_left_unset_is_turned_on(
    app: Celery, options: dict[str, Any], configured: dict[str, Any], adjust: bool, expected: tuple[Any, Any]
) -> None:  # attach: what the user set is kept
    app.conf.update(configured)
    celery_contract.install(app, store="memory://", adjust_settings=adjust)
    task = make(app, name="task", **options)
    app.finalize()
    assert (task.acks_late, task.reject_on_worker_lost) == expected


def test_every_path_that_publishes_carries_the_envelope(
    app: Celery, contract: Contract, published: list[dict[str, Any]]
) -> None:  # A1
    task = make(app, name="task", contract=Policy(key="order", subject="{order}"))
    task.delay("1")
    task.apply_async(("2",), subject="two")
    app.send_task("task", ("3",))
    app.send_task("elsewhere", ("4",))
    task.s("5").apply_async()
    chain(task.si("6"), task.si("7")).apply_async()
    wires = [headers["contract"] for headers in published]
    assert [wire["idempotency_key"] for wire in wires][:3] == ["1", "2", "3"]
    assert wires[1]["subject"] == "two"
    assert [wire["message_type"] for wire in wires] == ["task", "task", "task", "elsewhere", "task", "task"]
    assert all(wire["source"] == "shop" for wire in wires)


def test_shared_headers_are_not_changed(app: Celery, contract: Contract) -> None:  # DESIGN 5: beat shares them
    headers = {"mine": 1}
    make(app, name="task").apply_async(("1",), headers=headers)
    assert headers == {"mine": 1}


def test_a_duplicate_is_answered_and_canvas_is_left_alone(
    app: Celery, contract: Contract, published: list[dict[str, Any]]
) -> None:  # C1, DESIGN 5
    task = make(app, name="task", contract=POLICY)
    first, second = task.delay("1"), task.delay("1")
    assert (second.id, second.duplicate, len(published)) == (first.id, True, 1)
    linked = task.apply_async(("1",), link=task.si("9"))
    assert (linked.duplicate, linked.id != first.id, len(published)) == (False, True, 2)


def test_a_duplicate_may_raise(app: Celery, contract: Contract) -> None:  # C1
    task = make(app, name="task", contract=Policy(key="order", on_duplicate="raise"))
    first = task.delay("1")
    with pytest.raises(AlreadyEnqueued) as caught:
        task.delay("1")
    assert caught.value.existing_id == first.id


def test_bounds_hold_for_steered_tasks_only(app: Celery, contract: Contract) -> None:  # A3 A11
    steered, watched = make(app, name="steered", contract=POLICY), make(app, name="watched")
    with pytest.raises(DelayTooLong):
        steered.apply_async(("1",), countdown=13 * 3600)
    with pytest.raises(PayloadTooLarge):
        steered.delay("x" * 200_000)
    watched.apply_async(("x" * 200_000,), countdown=13 * 3600)


@pytest.mark.parametrize(
    ("error", "free"),
    [(TypeError("not serialisable"), True), (OperationalError("lost in the middle"), False)],
)
def test_a_refused_publish_gives_its_place_back_and_an_ambiguous_one_keeps_it(
    app: Celery, contract: Contract, monkeypatch: pytest.MonkeyPatch, error: Exception, free: bool
) -> None:  # DESIGN 3, enqueue
    task = make(app, name="task", contract=POLICY)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(app.amqp, "send_task_message", refuse)
        with pytest.raises(type(error)):
            task.apply_async(("1",), task_id="first")
    again = task.apply_async(("1",), task_id="second")
    assert again.id == ("second" if free else "first"), "healed under the id that may be on its way"


def test_eager_mode_honours_the_contract(app: Celery) -> None:  # attach: eager
    app.conf.task_always_eager = True
    contract = celery_contract.install(app)
    runs: list[int] = []

    def flaky(order: str) -> str:
        runs.append(current_run().attempt)
        if len(runs) < 3:
            raise ConnectionError("not yet")
        return f"receipt {order}"

    task = make(app, flaky, name="task", contract=POLICY)
    assert task.delay("1").get() == "receipt 1"
    assert task.delay("1").get() == "receipt 1"
    assert runs == [1, 2, 3]

    with pytest.raises(KeyError):
        make(app, broken, name="broken", contract=POLICY).delay("1").get()
    assert contract.dead_letters.stats().depth == 1


def test_what_runs_after_a_task_is_not_its_continuation(
    app: Celery, contract: Contract, published: list[dict[str, Any]]
) -> None:  # rule 2
    task = make(app, name="task")
    task.apply(("1",), task_id="reused")
    task.delay("2")
    task.apply(("1",), task_id="reused")
    task.delay("2")
    first, second = (headers["contract"]["idempotency_key"] for headers in published)
    assert first != second


@pytest.mark.parametrize(
    ("broker", "backend", "found"),
    [
        ("redis://h:1/2", None, "redis://h:1/2"),
        ("amqp://h", "rediss://h/1", "rediss://h/1"),
        ("amqp://h", "db+sqlite:///x", None),
        ("amqp://a;redis://b", None, "redis://b"),
        ("redis+socket:///run/redis.sock?virtual_host=3", None, "unix:///run/redis.sock?db=3"),
    ],
)
def test_the_store_is_found_in_the_apps_own_urls(broker: str, backend: str | None, found: str | None) -> None:
    # DESIGN 2: the store, left out
    assert find_store(Celery(broker=broker, backend=backend, set_as_current=False)) == found
