"""The framework-neutral way through execution."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from typing import Any

import pytest

from task_contract import NonRetryableError, Policy, RetryableError, current_envelope, current_run
from task_contract.envelope import current_envelope as envelope_or
from task_contract.errors import ConfigurationError, ContractError, StoreUnavailable
from task_contract.keys import store_key
from task_contract.running import Message, begin, encode_result, fail, finish
from task_contract.runs import Run
from task_contract.stores.base import Filter, Record
from tests.core.conftest import Bench

POLICY = Policy(key="order", subject="order", attempts=3, backoff={"kind": "fixed", "initial": 10.0, "jitter": "none"})


class Task:
    """A task that does what it is told, and remembers how often it ran."""

    __name__ = "charge"

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.runs = list(outcomes), 0

    def __call__(self, order: object, cents: int = 0) -> Any:
        self.runs += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome(order) if callable(outcome) else outcome


def record(bench: Bench, message: Message) -> Record:
    found = bench.store.get(store_key(message.envelope.message_type, message.envelope.idempotency_key))
    assert found is not None
    return found


@pytest.mark.parametrize("value", [{"ok": True}, 0, False, None, "", [], 1.5])
def test_finished_work_is_not_run_again_and_returns_its_result(bench: Bench, value: Any) -> None:  # A5 D1, rule 7
    task = Task(value)
    message = bench.message(task, POLICY, 1)
    first, second = (bench.deliver(message, task, POLICY) for _ in range(2))
    assert task.runs == 1
    assert (first.verdict.action, first.result, first.ran) == ("done", value, True)
    assert (second.verdict.action, second.result, second.has_result, second.ran) == ("done", value, True, False)


def test_another_message_with_the_same_key_is_the_same_work(bench: Bench) -> None:  # A6 D1
    task = Task("receipt")
    message = bench.message(task, POLICY, 1)
    bench.deliver(message, task, POLICY)
    copy = replace(message, message_id="another")
    assert bench.deliver(copy, task, POLICY).result == "receipt"
    assert task.runs == 1


@pytest.mark.parametrize("value", [object(), "x" * 70_000, float("nan"), {1, 2}])
def test_a_result_that_cannot_be_kept_does_not_fail_the_task(bench: Bench, value: Any) -> None:  # DESIGN 2 results
    task = Task(value)
    message = bench.message(task, POLICY, 1)
    assert bench.deliver(message, task, POLICY).result is value
    again = bench.deliver(message, task, POLICY)
    assert (again.verdict.action, again.has_result, task.runs) == ("done", False, 1)


def test_results_are_bounded_by_the_setting() -> None:  # C2
    assert encode_result("abc", 5) == b'"abc"'
    assert encode_result("abcd", 5) is None


def test_a_transient_error_is_retried_after_its_delay_and_not_before(bench: Bench) -> None:  # D4 E6 E8, rule 1
    task = Task(ConnectionError("refused"), "receipt")
    message = bench.message(task, POLICY, 1)
    verdict = bench.deliver(message, task, POLICY).verdict
    assert (verdict.action, verdict.delay, verdict.reason) == ("retry", 10.0, "transient")
    assert record(bench, message).state == "waiting"
    early = bench.deliver(message, task, POLICY).verdict
    assert (early.action, early.reason, early.delay) == ("defer", "early", 10.0)
    bench.time += 10
    assert bench.deliver(message, task, POLICY).result == "receipt"
    assert (task.runs, record(bench, message).attempts) == (2, 2)
    retried = next(event for event in bench.events if event.name == "retried")
    assert (retried.attempt, retried.delay, retried.error_type, retried.outcome) == (
        1,
        10.0,
        "ConnectionError",
        "retried",
    )


def test_retry_after_is_honoured(bench: Bench) -> None:  # A13
    task = Task(RetryableError("slow down", retry_after=77), "receipt")
    message = bench.message(task, POLICY, 1)
    assert bench.deliver(message, task, POLICY).verdict.delay == 77
    bench.time += 76
    assert bench.deliver(message, task, POLICY).verdict.action == "defer"


def test_attempts_are_bounded_then_the_letter_is_written(bench: Bench) -> None:  # D4 E3
    task = Task(TimeoutError("slow"))
    message = bench.message(task, POLICY, 1)
    actions = []
    for _ in range(3):
        actions.append(bench.deliver(message, task, POLICY).verdict.action)
        bench.time += 11
    assert (actions, task.runs) == (["retry", "retry", "dead"], 3)
    [letter] = bench.contract.dead_letters.page().letters
    assert (letter.reason, letter.attempts, letter.queue, letter.error_type) == (
        "exhausted",
        3,
        "orders",
        "TimeoutError",
    )
    assert (letter.error, letter.key, letter.subject, letter.framework) == ("slow", "1", "1", "test")
    assert "TimeoutError: slow" in letter.traceback
    assert json.loads(letter.message)["args"] == [1]
    assert letter.enqueued_at == message.envelope.created_at.isoformat()
    assert letter.worker
    assert letter.failed_at is not None


@pytest.mark.parametrize("error", [KeyError("bug"), ValueError("bad"), NonRetryableError("no")])
def test_a_permanent_error_is_dead_at_once(bench: Bench, error: Exception) -> None:  # E6 A14
    task = Task(error)
    message = bench.message(task, POLICY, 1)
    assert bench.deliver(message, task, POLICY).verdict.reason == "non-retryable"
    assert task.runs == 1
    assert record(bench, message).state == "dead"


def test_a_stale_copy_of_dead_work_is_dropped_and_a_fresh_enqueue_runs(bench: Bench) -> None:  # DESIGN 3
    task = Task(KeyError("bug"), "receipt")
    message = bench.message(task, POLICY, 1)
    letter_id = bench.deliver(message, task, POLICY).letter_id
    assert bench.deliver(message, task, POLICY).verdict.reason == "already-dead"
    fresh = bench.message(task, POLICY, 1)
    assert fresh.message_id != message.message_id, "burying released the reservation"
    assert bench.deliver(fresh, task, POLICY).result == "receipt"
    letter = bench.contract.dead_letters.get(letter_id)
    assert letter is not None
    assert letter.state == "superseded"


def test_a_running_duplicate_is_deferred_without_burning_an_attempt(bench: Bench) -> None:  # rule 1, D5
    task = Task("receipt")
    message = bench.message(task, POLICY, 1)
    run = begin(bench.contract, message, task, POLICY)
    assert isinstance(run, Run)
    verdict = bench.deliver(message, task, POLICY).verdict
    assert (verdict.action, verdict.reason) == ("defer", "running")
    assert record(bench, message).attempts == 1
    assert finish(bench.contract, message, run, "receipt").verdict.action == "done"


def test_a_dead_workers_claim_is_taken_over_and_the_late_owner_is_refused(bench: Bench) -> None:  # D5, rule 3
    task = Task("second")
    message = bench.message(task, POLICY, 1)
    late = begin(bench.contract, message, task, POLICY)
    assert isinstance(late, Run)
    bench.contract.leases.remove(late)
    bench.time += 31
    taken = begin(bench.contract, message, task, POLICY)
    assert isinstance(taken, Run)
    assert (taken.fence, taken.attempt, taken.crashes) == (2, 2, 1)
    refused = finish(bench.contract, message, late, "first")
    assert (refused.verdict.action, refused.verdict.reason) == ("defer", "lease-lost")
    assert finish(bench.contract, message, taken, "second").verdict.action == "done"
    # Now that the work is done, the late owner may drop its delivery, and tell what the work resulted in.
    dropped = finish(bench.contract, message, late, "first")
    assert (dropped.verdict.action, dropped.result) == ("done", "second")
    assert bench.deliver(message, task, POLICY).result == "second"
    assert "lease_lost" in bench.names()


def test_a_late_failure_neither_retries_nor_buries(bench: Bench) -> None:  # rule 3
    task = Task("second")
    message = bench.message(task, POLICY, 1)
    late = begin(bench.contract, message, task, POLICY)
    assert isinstance(late, Run)
    bench.contract.leases.remove(late)
    bench.time += 31
    begin(bench.contract, message, task, POLICY)
    for error in (ConnectionError(), KeyError()):
        assert fail(bench.contract, message, late, error).verdict.reason == "lease-lost"
    assert record(bench, message).state == "running"
    assert bench.contract.dead_letters.stats().depth == 0


def test_work_that_kills_its_workers_is_buried(bench: Bench) -> None:  # D14
    policy = POLICY.model_copy(update={"attempts": 10, "crashes": 3})
    task = Task("never")
    message = bench.message(task, policy, 1)
    for _ in range(3):
        run = begin(bench.contract, message, task, policy)
        assert isinstance(run, Run)
        bench.contract.leases.remove(run)
        bench.time += 31
    handled = bench.deliver(message, task, policy)
    assert (handled.verdict.reason, handled.ran, task.runs) == ("worker-killed", False, 0)
    letter = bench.contract.dead_letters.get(handled.letter_id)
    assert letter is not None
    assert letter.crashes == 3


class Stop(BaseException):
    """What a framework throws into a task to stop it."""


def test_an_interrupted_attempt_is_given_back(bench: Bench) -> None:  # DESIGN 5: interrupted, never crashed
    task = Task(Stop(), "receipt")
    message = bench.message(task, POLICY, 1)
    with pytest.raises(Stop):
        bench.deliver(message, task, POLICY)
    found = record(bench, message)
    assert (found.state, found.attempts, found.interruptions, found.crashes) == ("waiting", 0, 1, 0)
    assert bench.deliver(message, task, POLICY).result == "receipt"


def test_other_arguments_under_a_known_key_are_a_dead_letter_not_a_result(bench: Bench) -> None:  # rule 6
    task = Task("receipt")
    message = bench.message(task, POLICY, 1, cents=5)
    bench.deliver(message, task, POLICY)
    other = replace(message, message_id="other", kwargs={"cents": 6})
    handled = bench.deliver(other, task, POLICY)
    assert (handled.verdict.reason, handled.has_result) == ("payload-mismatch", False)
    assert record(bench, message).state == "done"
    reuse = POLICY.model_copy(update={"on_mismatch": "reuse"})
    assert bench.deliver(other, task, reuse).result == "receipt"


def test_an_older_schema_is_upgraded_and_a_newer_one_dead_lettered(bench: Bench) -> None:  # A2
    seen = []
    task = Task(seen.append)
    old = bench.message(task, POLICY, 1)
    policy = POLICY.model_copy(update={"schema_version": 2})

    @bench.contract.upgrades.register("charge", 1)
    def wrap(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "args": [f"order-{payload['args'][0]}"]}

    assert bench.deliver(old, task, policy).verdict.action == "done"
    assert seen == ["order-1"]
    new = bench.message(task, policy, 2)
    handled = bench.deliver(new, task, POLICY)
    assert (handled.verdict.action, handled.verdict.reason) == ("dead", "schema-too-new")
    assert task.runs == 1


def test_the_fleets_cap_defers_without_an_attempt(bench: Bench) -> None:  # D2
    policy = POLICY.model_copy(update={"max_concurrency": 1})
    task = Task("receipt")
    first, second = (bench.message(task, policy, order) for order in (1, 2))
    run = begin(bench.contract, first, task, policy)
    assert isinstance(run, Run)
    verdict = bench.deliver(second, task, policy).verdict
    assert (verdict.action, verdict.reason) == ("defer", "slots")
    finish(bench.contract, first, run, None)
    assert bench.deliver(second, task, policy).verdict.action == "done"


def test_the_code_sees_its_run_and_its_envelope(bench: Bench) -> None:  # A7 D11
    seen: dict[str, Any] = {}

    def look(order: object) -> None:
        run = current_run()
        run.progress(140.0, "nearly")
        seen.update(attempt=run.attempt, fence=run.fence, key=current_envelope().idempotency_key, beat=run.beat(False))
        seen["deadline"] = run.deadline

    task = Task(look)
    bench.deliver(bench.message(task, POLICY, 1), task, POLICY)
    assert (seen["attempt"], seen["fence"], seen["key"]) == (1, 1, "1")
    assert (seen["beat"].progress, seen["beat"].note, seen["beat"].silent_for >= 0) == (100, "nearly", True)
    with pytest.raises(ContractError, match="inside a task"):
        current_run()
    assert envelope_or(None) is None


def test_children_inherit_correlation_and_causation(bench: Bench) -> None:  # A1 E2
    children = []
    task = Task(lambda order: children.append(bench.message(Task("x"), POLICY, 2)))
    with bench.contract.context(correlation_id="job-7"):
        parent = bench.message(task, POLICY, 1)
    bench.deliver(parent, task, POLICY)
    assert children[0].envelope.correlation_id == "job-7"
    assert children[0].envelope.causation_id == "1"


def test_every_attempt_says_all_of_a16(bench: Bench) -> None:  # A16
    class Upstream(Exception):
        status_code = 503

    task = Task(Upstream("busy"))
    bench.deliver(bench.message(task, POLICY, 1), task, POLICY)
    event = bench.events[-1]
    assert (event.name, event.outcome, event.attempt, event.status) == ("retried", "retried", 1, 503)
    assert (event.message_type, event.subject, event.idempotency_key) == ("charge", "1", "1")
    assert event.error_type.endswith("Upstream")
    assert event.correlation_id
    assert event.message_id


def test_a_hook_hears_of_dead_letters_and_cannot_harm_them(bench: Bench) -> None:  # D8
    heard = []

    @bench.contract.on_dead_letter
    def broken(letter: object) -> None:
        raise RuntimeError("pager is down")

    bench.contract.on_dead_letter(heard.append)
    task = Task(KeyError("bug"))
    handled = bench.deliver(bench.message(task, POLICY, 1), task, POLICY)
    assert [letter.id for letter in heard] == [handled.letter_id]
    assert bench.contract.dead_letters.stats().depth == 1


class Away:
    """A store that is away for so many calls."""

    def __init__(self, store: Any, failures: int) -> None:
        self._store, self.failures = store, failures

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self.failures > 0:
                self.failures -= 1
                raise StoreUnavailable("away")
            return verb(*args, **kwargs)

        return guarded


def test_a_store_that_is_away_leaves_the_message_with_the_broker(bench: Bench) -> None:  # rule 9
    task = Task("receipt")
    message = bench.message(task, POLICY, 1)
    bench.contract.store = Away(bench.store, 10**6)  # type: ignore[misc]
    with pytest.raises(StoreUnavailable):
        bench.contract.handle(message, task, POLICY, patience=0)
    assert task.runs == 0


def test_the_claim_waits_in_place_for_as_long_as_it_was_told_to(bench: Bench) -> None:  # rule 9
    task = Task("receipt")
    message = bench.message(task, POLICY, 1)
    bench.contract.store = Away(bench.store, 2)  # type: ignore[misc]
    assert bench.contract.handle(message, task, POLICY, patience=30).result == "receipt"


def test_a_finished_run_insists_on_being_recorded(bench: Bench) -> None:  # A9
    task = Task(lambda order: setattr(away, "failures", 2))
    message = bench.message(task, POLICY, 1)
    away = Away(bench.store, 0)
    bench.contract.store = away  # type: ignore[misc,assignment]
    assert bench.deliver(message, task, POLICY).verdict.action == "done"
    assert record(bench, message).state == "done"


def test_parallel_deliveries_of_one_message_run_once(bench: Bench) -> None:  # D5
    bench.store.now = None
    inside, free = threading.Event(), threading.Event()

    def wait(order: object) -> str:
        inside.set()
        assert free.wait(20)
        return "receipt"

    task = Task(wait)
    message = bench.message(task, POLICY, 1)
    worker = threading.Thread(target=bench.deliver, args=(message, task, POLICY))
    worker.start()
    assert inside.wait(20)
    assert bench.deliver(message, task, POLICY).verdict.action == "defer"
    free.set()
    worker.join(20)
    assert bench.deliver(message, task, POLICY).result == "receipt"
    assert task.runs == 1


def test_releasing_the_enqueue_at_success_is_a_policys_choice(bench: Bench) -> None:  # B7
    for choice, duplicate in (("window", True), ("done", False)):
        policy = POLICY.model_copy(update={"dedup_until": choice})
        task = Task("receipt")
        message = bench.message(task, policy, choice)
        bench.deliver(message, task, policy)
        assert (bench.send(task, policy, choice).duplicate is not None) is duplicate


def test_burying_a_copy_of_exhausted_work_twice_leaves_one_letter(bench: Bench) -> None:  # rule 4
    task = Task(KeyError("bug"))
    message = bench.message(task, POLICY, 1)
    run = begin(bench.contract, message, task, POLICY)
    assert isinstance(run, Run)
    first = fail(bench.contract, message, run, KeyError("bug"))
    again = fail(bench.contract, message, run, KeyError("bug"))
    assert first.letter_id == again.letter_id
    assert len(bench.store.page_letters(Filter()).letters) == 1


# --- what a reviewer broke -------------------------------------------------------------------------------------------


def test_work_that_would_only_be_created_is_refused(bench: Bench) -> None:  # no loss
    async def later(order: object) -> None:
        """Never runs."""

    def some(order: object) -> Any:
        yield order

    message = bench.message(Task("x"), POLICY, 1)
    for fn in (later, some):
        with pytest.raises(ConfigurationError, match="runs it to its end"):
            bench.deliver(message, fn, POLICY)
    hidden = Task(later)
    assert bench.deliver(message, hidden, POLICY).verdict.reason == "non-retryable"


class Hostile(Exception):
    """Bites whoever looks at it."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    @property
    def __notes__(self) -> Any:
        raise RuntimeError("no")


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("error", [Hostile(), SyntaxError("bad", ("file", 1, 1, 5)), RecursionError()])
def test_whatever_an_error_is_it_can_be_buried(bench: Bench, error: Exception) -> None:  # D14
    policy = POLICY.model_copy(update={"dead_on": (type(error),)})
    task = Task(error)
    handled = bench.deliver(bench.message(task, policy, 1), task, policy)
    assert bench.contract.dead_letters.get(handled.letter_id) is not None


def test_whatever_the_arguments_are_the_message_can_be_buried(bench: Bench) -> None:  # D14
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in ({(1, 2): 3}, Unspeakable(), deep):
        task = Task(KeyError("bug"))
        message = replace(bench.message(task, POLICY, str(id(value))), kwargs={"cents": value})
        handled = bench.deliver(message, task, POLICY)
        letter = bench.contract.dead_letters.get(handled.letter_id)
        assert letter is not None
        assert b"unreadable" in letter.message


def test_a_payload_that_cannot_be_upgraded_is_a_dead_letter(bench: Bench) -> None:  # D14 A2
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    task = Task("x")
    message = replace(bench.message(task, POLICY, 1), kwargs={"cents": deep})
    bench.contract.upgrades.register("charge", 1)(lambda payload: payload)
    policy = POLICY.model_copy(update={"schema_version": 2})
    assert bench.deliver(message, task, policy).verdict.reason == "invalid"


def test_an_upgrade_does_not_make_waiting_work_a_mismatch(bench: Bench) -> None:  # A2, rule 6
    task = Task(ConnectionError(), "receipt")
    message = bench.message(task, POLICY, 1)
    bench.deliver(message, task, POLICY)
    bench.time += 10

    @bench.contract.upgrades.register("charge", 1)
    def in_dollars(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "kwargs": {"cents": 7}}

    policy = POLICY.model_copy(update={"schema_version": 2})
    assert bench.deliver(message, task, policy).result == "receipt"


class Shifting(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


def test_no_result_can_make_a_finished_effect_happen_again(bench: Bench) -> None:  # D1
    task = Task(Shifting(a=1))
    message = bench.message(task, POLICY, 1)
    assert bench.deliver(message, task, POLICY).verdict.action == "done"
    assert bench.deliver(message, task, POLICY).verdict.action == "done"
    assert task.runs == 1


def test_an_interrupt_right_after_the_claim_does_not_keep_it_alive(bench: Bench) -> None:  # C4
    def stop(event: Any) -> None:
        if event.name == "started" and not bench.contract.leases.draining:
            raise Stop

    unsubscribe = bench.contract.subscribe(stop)
    task = Task("receipt")
    message = bench.message(task, POLICY, 1)
    with pytest.raises(Stop):
        bench.deliver(message, task, POLICY)
    unsubscribe()
    assert record(bench, message).state == "waiting"
    assert bench.deliver(message, task, POLICY).result == "receipt"


def test_claims_without_an_answer_are_not_charged_as_crashes(bench: Bench) -> None:  # rule 4, D14
    class Deaf(Away):
        """Does what it is asked, and the answer is lost."""

        def __getattr__(self, name: str) -> Any:
            verb = getattr(self._store, name)

            def unheard(*args: Any, **kwargs: Any) -> Any:
                verb(*args, **kwargs)
                raise StoreUnavailable("no answer")

            return unheard if name == "claim" else verb

    task = Task("receipt")
    message = bench.message(task, POLICY, 1)
    bench.contract.store = Deaf(bench.store, 0)  # type: ignore[misc]
    for _ in range(4):
        with pytest.raises(StoreUnavailable):
            bench.contract.handle(message, task, POLICY, patience=0)
        bench.time += 31
    bench.contract.store = bench.store  # type: ignore[misc]
    assert bench.deliver(message, task, POLICY).result == "receipt"
    found = record(bench, message)
    assert (found.attempts, found.crashes) == (1, 0)


def test_a_child_that_the_task_forks_does_not_give_its_claim_away(bench: Bench) -> None:  # fork
    def fork(order: object) -> str:
        child = os.fork()
        if child == 0:
            sys.exit()
        _, status = os.waitpid(child, 0)
        return f"the child left with {status}"

    task = Task(fork)
    message = bench.message(task, POLICY, 1)
    try:
        handled = bench.deliver(message, task, POLICY)
    except SystemExit:  # the child, on its way out through `handle`
        os._exit(0 if record(bench, message).state == "running" else 1)
    assert handled.result == "the child left with 0"


def test_one_message_that_is_put_aside_makes_one_letter(bench: Bench) -> None:  # E3
    task = Task("receipt")
    message = bench.message(task, POLICY, 1, cents=5)
    bench.deliver(message, task, POLICY)
    other = replace(message, message_id="other", kwargs={"cents": 6})
    for _ in range(3):
        bench.deliver(other, task, POLICY)
    assert bench.contract.dead_letters.stats().depth == 1


def test_what_was_put_aside_may_be_sent_again(bench: Bench) -> None:  # DESIGN 3: dead releases the reservation
    task = Task("receipt")
    newer = POLICY.model_copy(update={"schema_version": 2})
    message = bench.message(task, newer, 1)
    assert bench.deliver(message, task, POLICY).verdict.reason == "schema-too-new"
    assert bench.send(task, newer, 1).duplicate is None


def test_a_stale_copy_says_so(bench: Bench) -> None:  # A16
    task = Task(KeyError("bug"))
    message = bench.message(task, POLICY, 1)
    bench.deliver(message, task, POLICY)
    bench.deliver(message, task, POLICY)
    assert bench.names()[-1] == "stale"
