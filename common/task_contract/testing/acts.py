"""What the tests do to a store, with the arguments that do not matter filled in."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from task_contract.stores.base import Beat, Claim, DeadLetter, Filter, Hold, Limits, Record, Store, Work
from task_contract.testing.clock import Clock

LEASE = 30.0
KEEP = 86_400.0
#: The smallest step of a store's clock.
TICK = 0.001
NO_LIMITS = Limits(attempts=1000, crashes=1000)


def claim(
    store: Store,
    key: str = "k",
    /,
    *,
    owner: str = "o1",
    message_id: str = "m1",
    lease: float = LEASE,
    keep: float = KEEP,
    limits: Limits | None = None,
    **work: Any,
) -> Claim:
    return store.claim(
        key, Work(message_id=message_id, **work), owner=owner, lease=lease, keep=keep, limits=limits or Limits()
    )


def run(store: Store, key: str = "k", /, *, owner: str = "o1", message_id: str = "m1", **options: Any) -> Hold:
    """Claim, win, and hold."""
    answer = claim(store, key, owner=owner, message_id=message_id, **options)
    assert answer.outcome == "won", answer
    return held(answer, key, owner=owner, message_id=message_id, **options)


def held(answer: Claim, key: str = "k", /, *, owner: str = "o1", message_id: str = "m1", **options: Any) -> Hold:
    """The hold that a worker makes of a claim's answer."""
    limits: Limits = options.pop("limits", None) or Limits()
    options.pop("lease", None), options.pop("keep", None)
    return Hold(key, owner, answer.fence, answer.attempt, Work(message_id=message_id, **options), limits.slot)


def crash(store: Store, clock: Clock, key: str = "k", /, *, owner: str = "o1", **options: Any) -> Hold:
    """Win the claim, then fall silent until the lease has run out."""
    hold = run(store, key, owner=owner, **options)
    clock.advance(options.get("lease", LEASE))
    return hold


def exhaust(store: Store, key: str = "k", /, *, owner: str = "o2") -> Hold:
    """A record whose single attempt was used up, handed out to be buried."""
    wait(store, run(store, key))
    answer = claim(store, key, owner=owner, limits=Limits(attempts=1))
    assert answer.outcome == "exhausted", answer
    return held(answer, key, owner=owner)


def beat(store: Store, hold: Hold, *, lease: float = LEASE, **said: Any) -> str:
    (answer,) = store.extend([Beat(hold, lease, **said)])
    return answer


def finish(store: Store, hold: Hold, result: bytes | None = b'"ok"', *, keep: float = KEEP) -> None:
    store.complete(hold, keep=keep, result=result)


def wait(store: Store, hold: Hold, delay: float = 0, *, keep: float = KEEP, **options: Any) -> None:
    store.retry(hold, delay=delay, keep=keep, **options)


def letter(letter_id: str = "L1", **fields: Any) -> DeadLetter:
    return DeadLetter(**{"id": letter_id, "reason": "failed", "message": b"{}", **fields})


def bury(store: Store, hold: Hold, letter_id: str = "L1", *, keep: float = KEEP, **fields: Any) -> str:
    return store.bury(hold, letter(letter_id, **fields), keep=keep)


#: How a run ends, by verb.
END: dict[str, Callable[[Store, Hold], object]] = {"complete": finish, "retry": wait, "bury": bury}


def replay(store: Store, letter_id: str = "L1", *, keep: float = KEEP) -> DeadLetter:
    return store.replay_letter(letter_id, by="ann", reason="fixed", keep=keep)


def discard(store: Store, letter_id: str = "L1") -> bool:
    return store.discard_letter(letter_id, by="ann", reason="useless")


def record(store: Store, key: str = "k") -> Record:
    found = store.get(key)
    assert found is not None, f"no record {key!r}"
    return found


def read(store: Store, letter_id: str = "L1") -> DeadLetter:
    found = store.get_letter(letter_id)
    assert found is not None, f"no letter {letter_id!r}"
    return found


def all_letters(store: Store, where: Filter | None = None, *, limit: int = 50) -> list[DeadLetter]:
    """Every page to the end; a page may be short and still have a cursor."""
    found: list[DeadLetter] = []
    cursor = ""
    for _ in range(10_000):
        page = store.page_letters(where or Filter(), limit=limit, cursor=cursor)
        assert len(page.letters) <= limit
        found.extend(page.letters)
        if not (cursor := page.cursor):
            return found
    raise AssertionError("the pages do not end")


def only(**facets: Any) -> Filter:
    return Filter(**facets)


def ids(store: Store, where: Filter | None = None, *, limit: int = 50) -> list[str]:
    return [found.id for found in all_letters(store, where, limit=limit)]
