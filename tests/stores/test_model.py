"""Every store against one reference model: random steps, the same answers, the same records, the same dead letters.

A long campaign: `TASK_CONTRACT_MODEL=long pytest tests/stores/test_model.py`. A failure prints the steps to repeat it,
and its seed for `TASK_CONTRACT_MODEL_SEED`.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from task_contract.errors import InvalidTransition, LeaseLost
from task_contract.stores.base import Beat, DeadLetter, Filter, Hold, Limits, Record, Store, Work, datetime_ms
from task_contract.testing import Clock
from tests.stores.model import Model, ModelLetter, ModelRecord
from tests.stores.opening import Address

#: "long" for a campaign; "quick" to stop at the first failure, without looking for a shorter one.
MODE = os.environ.get("TASK_CONTRACT_MODEL", "")
LONG = MODE == "long"
EXAMPLES = {"memory": 200, "sqlite": 60, "redis": 80, "postgres": 50}
STEPS = 50

KEYS = ("k1", "k2", "k3")
keys = st.sampled_from(KEYS)
owners = st.sampled_from(["o1", "o2", "o3", "o4"])
message_ids = st.sampled_from(["m1", "m2", "m3", "m4", "m5", "m6"])
#: Other arguments are rare, or nothing else would happen.
hashes = st.sampled_from(["h1"] * 18 + ["", "h2"])
PLACES = ("r1", "r2")
places = st.sampled_from(PLACES)
maybe_place = st.sampled_from(("", *PLACES))
maybe_key = st.sampled_from(("", *KEYS))
tokens = st.sampled_from(["t1", "t2", "t3"])
leases = st.sampled_from([10.0, 30.0])
keeps = st.sampled_from([600.0] * 6 + [30.0, 60.0])
endings = st.sampled_from(["failed", "interrupted", "crashed"])
results = st.sampled_from([None, b"", b"0", b"\x00\xff"])
#: Few words, so that pages and filters meet several letters of a kind.
words = st.sampled_from(["", "x", "y"])
#: Which of the things that were given out, counted from the newest.
recent = st.integers(1, 8)
limits = st.builds(
    Limits,
    attempts=st.sampled_from([1, 2, 3] + [9] * 5),
    crashes=st.sampled_from([2, 2, 2, 1, 3]),
    interruptions=st.integers(0, 2),
    suspects=st.sampled_from([True, True, False]),
    slot=st.sampled_from(["", "s1", "s1", "s2"]),
    slots=st.sampled_from([1, 2, 2]),
)
works = st.builds(
    Work,
    message_id=message_ids,
    message_type=words,
    key=words,
    payload_hash=hashes,
    correlation_id=words,
    causation_id=words,
    subject=words,
    worker=words,
)
letters = st.builds(
    DeadLetter,
    id=st.just(""),
    reason=st.sampled_from(["failed", "crashes"]),
    message=st.just(b"\x00body"),
    message_id=message_ids,
    **dict.fromkeys(
        ("message_type", "key", "correlation_id", "causation_id", "subject", "queue", "error_type", "error", "group"),
        words,
    ),
)


class Pair:
    """A store and the model, taking every step together."""

    def __init__(self, store: Store) -> None:
        self.clock = Clock()
        self.store, self.model = store, Model(self.clock.ms)
        store.now = self.clock
        self.holds: list[Hold] = []
        self.letter_ids: list[str] = []

    def move(self, milliseconds: int) -> None:
        self.clock.ms += max(0, milliseconds)
        self.model.now = self.clock.ms

    def claim(self, key: str, work: Work, owner: str, lease: float, keep: float, limits: Limits) -> None:
        expected = self.model.claim(key, work, owner, lease, keep, limits)
        answer = self.store.claim(key, work, owner=owner, lease=lease, keep=keep, limits=limits)
        assert answer == expected
        if answer.outcome in ("won", "exhausted"):
            self.holds.append(Hold(key, owner, answer.fence, answer.attempt, work, limits.slot))

    def extend(self, beat: Beat) -> None:
        expected = self.model.extend(*beat)
        assert self.store.extend([beat]) == [expected]

    def complete(self, hold: Hold, keep: float, result: bytes | None, place: str) -> None:
        expected = self.model.complete(hold, keep, result, place)
        assert outcome(lambda: self.store.complete(hold, keep=keep, result=result, reservation=place)) == expected

    def retry(self, hold: Hold, delay: float, keep: float, error: str, how: Any, bound: int) -> None:
        expected = self.model.retry(hold, delay, keep, error, how, bound)
        answer = outcome(
            lambda: self.store.retry(hold, delay=delay, keep=keep, error=error, ending=how, interruptions=bound)
        )
        assert answer == expected

    def bury(self, hold: Hold, letter: DeadLetter, keep: float, place: str) -> None:
        letter = self._named(letter)
        expected = self.model.bury(hold, letter, keep, place)
        assert outcome(lambda: self.store.bury(hold, letter, keep=keep, reservation=place)) == expected

    def put_letter(self, letter: DeadLetter, keep: float) -> None:
        letter = self._named(letter)
        assert self.store.put_letter(letter, keep=keep) == self.model.put_letter(letter, keep)

    def replay(self, letter_id: str, by: str, reason: str, keep: float) -> None:
        expected = self.model.replay(letter_id, by, reason, keep)
        answer = outcome(lambda: self.store.replay_letter(letter_id, by=by, reason=reason, keep=keep))
        if expected is None:
            assert isinstance(answer, DeadLetter), answer
            compare_letter(answer, self.model.letters[letter_id])
        else:
            assert answer == expected

    def pages(self, where: Filter, limit: int) -> list[DeadLetter]:
        page = self.store.page_letters(where, limit=limit)
        found = list(page.letters)
        while page.cursor:
            page = self.store.page_letters(where, limit=limit, cursor=page.cursor)
            assert len(page.letters) <= limit
            found += page.letters
        return found

    def _named(self, letter: DeadLetter) -> DeadLetter:
        self.letter_ids.append(f"L{len(self.letter_ids):03}")
        return replace(letter, id=self.letter_ids[-1])


def outcome(call: Callable[[], Any]) -> Any:
    """What a verb answered, or how it refused."""
    try:
        return call()
    except (LeaseLost, InvalidTransition) as error:
        return type(error).__name__, error.state


has_holds = precondition(lambda machine: machine.pair.holds)
has_letters = precondition(lambda machine: machine.pair.letter_ids)


class StoreMachine(RuleBasedStateMachine):
    """Each rule takes one step; the invariants compare all that can be seen after it."""

    open: ClassVar[Callable[[], Store]]

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(type(self).open())
        self.store, self.model = self.pair.store, self.pair.model
        self.owners = (f"o-{n}" for n in itertools.count())

    def teardown(self) -> None:
        self.store.close()

    def hold(self, which: int) -> Hold:
        return self.pair.holds[-min(which, len(self.pair.holds))]

    def current(self, key: str) -> Hold | None:
        """Its true owner's, for most holds that were ever given out are stale."""
        return next((hold for hold in reversed(self.pair.holds) if hold.key == key), None)

    def letter_id(self, which: int) -> str:
        return self.pair.letter_ids[-min(which, len(self.pair.letter_ids))]

    # Time.

    @rule(step=st.sampled_from([1, 1_000, 9_999, 10_000, 30_000]))
    def pass_time(self, step: int) -> None:
        self.pair.move(step)

    @rule(which=st.integers(0, 5), tick=st.sampled_from([-1, 0, 0, 1]))
    def pass_time_to_a_boundary(self, which: int, tick: int) -> None:
        moments = self.model.deadlines()
        if moments:
            self.pair.move(moments[which % len(moments)] - self.model.now + tick)

    @rule()
    def crash_all(self) -> None:
        self._expire_leases()

    def _expire_leases(self) -> None:
        self.pair.move(max((record.lease_until for record in self.model.records.values()), default=0) - self.model.now)

    # Enqueue.

    @rule(
        key=places, token=tokens, message_id=message_ids, payload_hash=hashes, record_key=maybe_key,
        take_over=st.sampled_from(["", "t1", "t2", "t3"]), ttl=leases,
    )  # fmt: skip
    def reserve(self, key: str, ttl: float, **how: str) -> None:
        self.reserve_as(key, ttl, **how)

    def reserve_as(self, key: str, ttl: float, **how: str) -> None:
        expected = self.model.reserve(key, ttl=ttl, **how)
        assert self.store.reserve(key, ttl=ttl, **how) == expected

    @rule(
        key=places, token=tokens, message_id=message_ids, payload_hash=hashes, record_key=maybe_key, ttl=keeps,
        until_done=st.booleans(),
    )  # fmt: skip
    def confirm(self, key: str, ttl: float, **how: Any) -> None:
        self.confirm_as(key, ttl, **how)

    @rule(key=places, record_key=keys, token=tokens, ttl=keeps, until_done=st.booleans())
    def confirm_late(self, key: str, record_key: str, token: str, ttl: float, until_done: bool) -> None:
        """The worker was faster: its message may have come to its end."""
        if record := self.model.record(record_key):
            how = {"token": token, "message_id": record.work.message_id, "payload_hash": "", "record_key": record_key}
            self.confirm_as(key, ttl, **how, until_done=until_done)

    def confirm_as(self, key: str, ttl: float, **how: Any) -> None:
        expected = self.model.confirm(key, ttl=ttl, **how)
        assert self.store.confirm(key, ttl=ttl, **how) is expected

    @rule(key=places, message_id=message_ids, token=tokens, ttl=keeps)
    def enqueue(self, key: str, message_id: str, token: str, ttl: float) -> None:
        place = {"token": token, "message_id": message_id, "payload_hash": "", "record_key": ""}
        self.reserve_as(key, 30.0, **place, take_over="")
        self.confirm_as(key, ttl, **place, until_done=False)

    @rule(key=places, token=tokens)
    def release(self, key: str, token: str) -> None:
        expected = self.model.release(key, token)
        assert self.store.release(key, token=token) is expected

    @rule(key=places, message_id=message_ids)
    def free(self, key: str, message_id: str) -> None:
        expected = self.model.free(key, message_id)
        assert self.store.free(key, message_id=message_id) is expected

    # Execution.

    @rule(key=keys, work=works, owner=owners, lease=leases, keep=keeps, limits=limits)
    def claim(self, key: str, work: Work, owner: str, lease: float, keep: float, limits: Limits) -> None:
        self.pair.claim(key, work, owner, lease, keep, limits)

    @rule(key=keys, work=works, lease=leases, limits=limits, tick=st.sampled_from([-1, 0, 0, 0]))
    def claim_as_soon_as_possible(self, key: str, work: Work, lease: float, limits: Limits, tick: int) -> None:
        """Take over, or take up, at the very moment it becomes possible, or one tick before."""
        record = self.model.record(key)
        if record and (moment := record.lease_until or record.not_before):
            self.pair.move(moment - self.model.now + tick)
        self.pair.claim(key, work, next(self.owners), lease, 600.0, limits)

    @rule(key=keys, limits=limits, lease=leases, tick=st.sampled_from([-1, 0, 20_000]), other=st.booleans())
    def claim_again(self, key: str, limits: Limits, lease: float, tick: int, other: bool) -> None:
        """As one does whose reply was lost: near the end of its lease or beyond, by code that names arguments anew."""
        record = self.model.record(key)
        if record and record.state == "running":
            self.pair.move(record.lease_until - self.model.now + tick)
            work = record.work._replace(payload_hash="h2" if other else "h1")
            self.pair.claim(key, work, record.owner, lease, 600.0, limits)

    @rule(work=works, limits=limits, lease=leases)
    def claim_all(self, work: Work, limits: Limits, lease: float) -> None:
        """As neighbours in one process do."""
        self._claim_all(work, limits, lease)

    def _claim_all(self, work: Work, limits: Limits, lease: float) -> None:
        for key in KEYS:
            self.pair.claim(key, work, next(self.owners), lease, 600.0, limits)

    @rule(message_id=message_ids, crashes=st.integers(2, 3), slot=st.sampled_from(["", "s1"]), draining=st.booleans())
    def crash_together(self, message_id: str, crashes: int, slot: str, draining: bool) -> None:
        """What the suspect lock is for: all of them crash, and only one may show that it does so alone."""
        bounds = Limits(attempts=9, crashes=crashes, interruptions=1, slot=slot, slots=2)
        for _ in range(crashes):
            self._claim_all(Work(message_id), bounds, 30.0)
            if draining and self.pair.holds:
                self.pair.extend(Beat(self.pair.holds[-1], 30.0, draining))
            self._expire_leases()
        self._claim_all(Work(message_id), bounds, 30.0)

    @has_holds
    @rule(
        which=recent, lease=leases, draining=st.booleans(), progress=st.sampled_from([-1, 0, 50]), note=words,
        silent_for=st.sampled_from([-1.0, 0.0, 2.5]),
    )  # fmt: skip
    def extend(self, which: int, **said: Any) -> None:
        self.pair.extend(Beat(self.hold(which), **said))

    @has_holds
    @rule(which=recent, keep=keeps, result=results, place=maybe_place)
    def complete(self, which: int, keep: float, result: bytes | None, place: str) -> None:
        self.pair.complete(self.hold(which), keep, result, place)

    @has_holds
    @rule(
        which=recent, delay=st.sampled_from([0.0, 0.0, 5.0]), keep=keeps, error=words, how=endings,
        bound=st.integers(0, 2),
    )  # fmt: skip
    def retry(self, which: int, **options: Any) -> None:
        self.pair.retry(self.hold(which), **options)

    @has_holds
    @rule(which=recent, letter=letters, keep=keeps, place=maybe_place)
    def bury(self, which: int, letter: DeadLetter, keep: float, place: str) -> None:
        self.pair.bury(self.hold(which), letter, keep, place)

    @has_holds
    @rule(key=keys, result=results, place=maybe_place)
    def complete_what_runs(self, key: str, result: bytes | None, place: str) -> None:
        if hold := self.current(key):
            self.pair.complete(hold, 600.0, result, place)

    @has_holds
    @rule(key=keys, how=endings)
    def retry_what_runs(self, key: str, how: Any) -> None:
        if hold := self.current(key):
            self.pair.retry(hold, 0.0, 600.0, "x", how, 1)

    @has_holds
    @rule(key=keys, letter=letters, place=maybe_place)
    def bury_what_runs(self, key: str, letter: DeadLetter, place: str) -> None:
        if hold := self.current(key):
            self.pair.bury(hold, letter, 600.0, place)

    @has_holds
    @rule(key=keys, draining=st.booleans())
    def renew_what_runs(self, key: str, draining: bool) -> None:
        if hold := self.current(key):
            self.pair.extend(Beat(hold, 30.0, draining, 50, "x", 0.0))

    @has_holds
    @rule(which=recent, wrong=st.sampled_from([{"owner": "stranger"}, {"fence": 77}]), letter=letters)
    def end_as_a_stranger(self, which: int, wrong: dict[str, Any], letter: DeadLetter) -> None:
        stranger = self.hold(which)._replace(**wrong)
        if self.model.record(stranger.key):
            self.pair.complete(stranger, 60.0, b"x", "")
            self.pair.retry(stranger, 5.0, 60.0, "x", "failed", 2)
            self.pair.bury(stranger, letter, 60.0, "")
            self.pair.extend(Beat(stranger, 99.0))

    # Dead letters.

    @rule(letter=letters, keep=keeps)
    def put_letter(self, letter: DeadLetter, keep: float) -> None:
        self.pair.put_letter(letter, keep)

    @has_letters
    @rule(which=recent)
    def put_letter_again(self, which: int) -> None:
        if found := self.model.letters.get(self.letter_id(which)):  # expired ones as well
            changed = replace(found.letter, error="changed", reason="changed", queue="changed")
            assert self.store.put_letter(changed, keep=60.0) == self.model.put_letter(changed, 60.0)

    @has_letters
    @rule(which=recent, keep=keeps, by=words, reason=words)
    def replay(self, which: int, keep: float, by: str, reason: str) -> None:
        self.pair.replay(self.letter_id(which), by, reason, keep)

    @has_letters
    @rule(which=recent)
    def mark_replayed(self, which: int) -> None:
        expected = self.model.mark_replayed(self.letter_id(which))
        assert self.store.mark_replayed(self.letter_id(which)) is expected

    @has_letters
    @rule(which=recent, by=words, reason=words)
    def discard(self, which: int, by: str, reason: str) -> None:
        letter_id = self.letter_id(which)
        expected = self.model.discard(letter_id, by, reason)
        assert outcome(lambda: self.store.discard_letter(letter_id, by=by, reason=reason)) == expected

    @rule(
        closed=st.booleans(), facets=st.dictionaries(st.sampled_from(["queue", "group", "reason", "subject"]), words),
        limit=st.integers(1, 3), since=st.booleans(), until=st.booleans(),
    )  # fmt: skip
    def filter_letters(self, closed: bool, facets: dict[str, Any], limit: int, since: bool, until: bool) -> None:
        known = self.model.live_letters(closed)
        middle = known[len(known) // 2].failed_at if known else self.model.now
        moment = Clock(middle).today
        where = Filter(closed=closed, since=moment if since else None, until=moment if until else None, **facets)
        expected = [
            each.letter.id
            for each in known
            if all(not value or getattr(each.letter, name) == value for name, value in facets.items())
            and (not since or each.failed_at >= middle)
            and (not until or each.failed_at < middle)
        ]
        assert [letter.id for letter in self.pair.pages(where, limit)] == expected

    @rule(limit=st.integers(1, 3))
    def expire(self, limit: int) -> None:
        """Only what nobody can see any more goes: the invariants hold afterwards."""
        assert 0 <= self.store.expire(limit) <= limit

    # What holds after every step.

    @invariant()
    def records_agree(self) -> None:
        for key in KEYS:
            compare_record(self.store.get(key), self.model.record(key))

    @invariant()
    def reservations_agree(self) -> None:
        """They show only to whoever wants one: ask as a stranger, and give back what was free."""
        for key in PLACES:
            stranger: dict[str, Any] = {"token": "stranger", "message_id": "none", "ttl": 30.0}
            expected = self.model.reserve(key, payload_hash="", record_key="", take_over="", **stranger)
            assert self.store.reserve(key, **stranger) == expected
            if expected.outcome == "won":
                assert self.store.release(key, token="stranger") is self.model.release(key, "stranger")

    @invariant()
    def letters_agree(self) -> None:
        for closed in (False, True):
            expected, found = self.model.live_letters(closed), self.pair.pages(Filter(closed=closed), 20)
            assert [letter.id for letter in found] == [each.letter.id for each in expected]
            for letter, each in zip(found, expected, strict=True):
                compare_letter(letter, each)

    @invariant()
    def statistics_agree(self) -> None:
        found = self.store.letter_stats()
        assert (found.depth, datetime_ms(found.oldest_at), dict(found.reasons)) == self.model.stats()


def compare_record(found: Record | None, expected: ModelRecord | None) -> None:
    if found is None or expected is None:
        assert found is None, f"a record that should not be: {found}"
        assert expected is None, f"a record is missing: {expected}"
        return
    wanted = vars(expected) | expected.work._asdict()
    del wanted["work"]
    former = [f"%-{message_id}" for message_id in wanted.pop("former_ids")]
    wanted["seen_ids"] = " ".join([*former, *wanted.pop("older_ids")])
    wanted["has_result"], wanted["result"] = expected.result is not None, expected.result or b""
    assert plain(vars(found)) == wanted


def compare_letter(found: DeadLetter, expected: ModelLetter) -> None:
    managed = {name: value for name, value in vars(expected).items() if name != "letter"}
    wanted = {each.name: getattr(expected.letter, each.name) for each in fields(DeadLetter)} | managed
    assert plain(vars(found)) == wanted


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Times in milliseconds, and 0 for none."""
    return {
        name: datetime_ms(value) if value is None or isinstance(value, datetime) else value
        for name, value in values.items()
    }


@pytest.mark.timeout(0 if LONG else 300)
def test_the_store_does_what_the_model_does(anywhere: Address, tmp_path: Path) -> None:  # D1, D3, D5, DESIGN 3
    start = int(os.environ.get("TASK_CONTRACT_MODEL_SEED") or random.randrange(2**32))
    logging.getLogger(__name__).warning("%s: TASK_CONTRACT_MODEL_SEED=%d", anywhere.kind, start)
    machine = type(f"{anywhere.kind}Machine", (StoreMachine,), {"open": staticmethod(fresh(anywhere, tmp_path))})
    run_state_machine_as_test(seed(start)(machine), settings=effort(anywhere.kind))


def effort(kind: str) -> settings:
    return settings(
        max_examples=EXAMPLES[kind] * (20 if LONG else 1),
        stateful_step_count=STEPS * (2 if LONG else 1),
        deadline=None,
        derandomize=False,
        print_blob=True,
        database=None,
        phases=[Phase.generate] if MODE == "quick" else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def fresh(address: Address, folder: Path) -> Callable[[], Store]:
    """Opens an empty store, every time."""
    numbers = itertools.count()

    def open_fresh() -> Store:
        number = next(numbers)
        if address.kind == "sqlite":
            return replace(address, url=f"sqlite:///{folder / f'{number}.db'}").open()
        if address.kind == "redis":
            return replace(address, name=f"{address.name}-{number}").open()
        if address.kind == "postgres" and number:
            empty(address)
        return address.open()

    return open_fresh


def empty(address: Address) -> None:
    with psycopg.connect(address.url, autocommit=True) as connection:
        for table in ("records", "reservations", "letters", "tallies"):
            connection.execute(f'DELETE FROM "{address.name}".{table}')
