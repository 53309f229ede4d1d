"""The Celery adapter with real workers, on Redis and on RabbitMQ."""

from __future__ import annotations

import json
import os
import signal

import pytest
from celery import chain, chord, group

from task_contract import PayloadMismatch
from tests.adapters.conftest import Shop, kill_group, until


def test_a_repeat_is_answered_with_the_first_ones_id_and_runs_once(shop: Shop) -> None:  # B1 C1 D1
    first = shop.tasks.charge.delay("1")
    second = shop.tasks.charge.apply_async(kwargs={"order": "1"})
    assert (first.duplicate, second.duplicate, second.id) == (False, True, first.id)
    shop.worker()
    assert second.get(timeout=60) == "receipt 1"
    assert shop.count("charge 1") == 1
    with pytest.raises(PayloadMismatch):  # rule 6
        shop.tasks.charge.delay("1", cents=6)


def test_a_finished_duplicate_returns_the_stored_result_and_its_chain_goes_on(shop: Shop) -> None:  # rule 2
    shop.worker()
    assert shop.tasks.charge.delay("1").get(timeout=60) == "receipt 1"
    step = chain(shop.tasks.charge.si("1"), shop.tasks.watched.si(1, 2))
    assert step.apply_async().get(timeout=60) == 3
    both = group(shop.tasks.charge.si("1"), shop.tasks.watched.s(2, 3))
    assert both.apply_async().get(timeout=60) == ["receipt 1", 5]
    assert shop.count("charge 1") == 1


def test_errors_are_classified(shop: Shop) -> None:  # D4 E6
    shop.worker()
    assert shop.tasks.flaky.delay("1", 2).get(timeout=60) == 3
    with pytest.raises(KeyError):
        shop.tasks.broken.delay("1").get(timeout=60)
    assert (shop.count("flaky 1"), shop.count("broken 1")) == (3, 1)
    [letter] = shop.contract.dead_letters.page().letters
    assert (letter.reason, letter.error_type, letter.framework) == ("non-retryable", "KeyError", "celery")
    assert json.loads(letter.message)["args"] == ["1"]


def test_a_dead_letter_is_replayed_under_its_own_id(shop: Shop) -> None:  # E4 D7
    shop.worker()
    result = shop.tasks.broken.delay("1")
    with pytest.raises(KeyError):
        result.get(timeout=60)
    [letter] = shop.contract.dead_letters.page().letters
    shop.contract.dead_letters.replay(letter.id, by="ann")
    until(lambda: shop.count("broken 1") == 2)
    [again] = until(lambda: shop.contract.dead_letters.page().letters)
    assert (again.message_id, again.replays) == (result.id, 1)
    assert shop.tasks.broken.delay("1").id != result.id, "dead work may be sent anew"


def test_a_watched_task_stays_as_it_was(shop: Shop) -> None:  # DESIGN 2: watched
    shop.worker()
    assert shop.tasks.watched.delay(1, 2).get(timeout=60) == 3
    assert shop.tasks.own_retries.delay(2).get(timeout=60) == 2
    with pytest.raises(ValueError, match="as ever"):
        shop.tasks.failing.delay().get(timeout=60)
    with pytest.raises(ConnectionError):
        shop.tasks.own_retries.delay(9).get(timeout=60)
    assert [shop.count(f"own {n}") for n in range(4)] == [2, 2, 2, 1]
    assert shop.tasks.watched.acks_late is False
    reasons = [letter.reason for letter in shop.contract.dead_letters.page().letters]
    assert reasons == ["failed", "failed"]


def test_canvas_comes_out_right(shop: Shop) -> None:  # DESIGN 5: suppressing breaks canvas
    shop.worker()
    tasks = shop.tasks
    body = chord([tasks.watched.s(n, n) for n in range(4)], tasks.watched.si(40, 2))
    assert body.apply_async().get(timeout=60) == 42
    linked = tasks.charge.apply_async(("linked",), link=tasks.watched.si(7, 7))
    assert linked.get(timeout=60) == "receipt linked"
    until(lambda: shop.count("watched 7 7") == 1)


def test_children_belong_to_the_job(shop: Shop) -> None:  # A1 E2
    shop.worker()
    with shop.contract.context(correlation_id="job-7"):
        told = shop.tasks.parent.delay().get(timeout=60)
    assert told["correlation"] == "job-7"
    [mark] = until(shop.marks)
    assert json.loads(mark) == {"correlation": "job-7", "cause": told["key"]}


def test_the_base_class_steers_one_task(shop: Shop) -> None:  # base-class swap
    shop.worker()
    told = shop.tasks.swapped.delay("hello").get(timeout=60)
    assert (told["text"], told["type"].endswith("swapped")) == ("hello", True)
    assert shop.tasks.swapped.acks_late is True


def test_a_steered_task_is_made_safe_to_kill_unless_refused(shop: Shop) -> None:  # attach
    assert (shop.tasks.charge.acks_late, shop.tasks.charge.reject_on_worker_lost) == (True, True)


def test_a_killed_worker_loses_nothing(shop: Shop) -> None:  # D5 A9
    worker = shop.worker()
    result = shop.tasks.slow.delay("1", 2.0)
    until(lambda: shop.count("slow 1 1"))
    kill_group(worker)
    shop.worker()
    assert result.get(timeout=90) == "slept 1"
    assert (shop.count("slow 1 2"), shop.count("slept 1")) == (1, 1)


def test_poison_is_buried_and_its_neighbours_run(shop: Shop) -> None:  # D14
    shop.worker()
    shop.tasks.poison.delay("1")
    [letter] = until(lambda: shop.contract.dead_letters.page(reason="worker-killed").letters, 120)
    assert letter.message_type.endswith("poison")
    assert shop.count("poison 1") == 2
    assert shop.tasks.charge.delay("neighbour").get(timeout=60) == "receipt neighbour"


def test_a_task_longer_than_the_visibility_timeout_runs_once(shop: Shop, broker: str) -> None:  # DESIGN 5, visibility
    shop.worker()
    result = shop.tasks.slow.delay("1", 8.0)
    assert result.get(timeout=90) == "slept 1"
    assert (shop.count("slow 1"), shop.count("slept 1")) == (1, 1)


def test_a_warm_shutdown_finishes_and_burns_nothing(shop: Shop) -> None:  # interrupted, never crashed
    worker = shop.worker()
    result = shop.tasks.slow.delay("1", 1.0)
    until(lambda: shop.count("slow 1 1"))
    os.kill(worker.pid, signal.SIGTERM)
    worker.wait(60)
    assert result.get(timeout=60) == "slept 1"
    assert shop.count("slow 1") == 1
