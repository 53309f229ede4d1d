"""A proxy between store and server loses replies, cuts connections and falls silent.

The server has done what was asked when its reply is lost. The store asks again, and must neither do it twice nor take
its own first try for somebody else's (DESIGN 3, rule 4).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from task_contract.errors import StoreUnavailable
from task_contract.stores.base import Beat, DeadLetter, Hold, Limits, Reservation, Store, Work
from tests.proxy import Proxy
from tests.stores.opening import Address

#: Stands in the one request whose reply is to be lost, and in no other.
MARK = "reply-to-be-lost"
#: Generous for three tries of a second each, and still below a reservation's 30 s (A13).
BOUND = 20.0


@dataclass
class Wire:
    """One store object through the proxy, another past it."""

    proxy: Proxy
    store: Store
    direct: Store

    def lose_reply(self, mark: str = MARK, times: int = 1) -> None:
        self.proxy.drop_reply(mark.encode(), times)

    def run(self, owner: str = "o1", key: str = "k") -> Hold:
        return _run(self.direct, owner, key)

    def bury(self, letter_id: str = MARK) -> None:
        self.direct.bury(self.run(), _letter(letter_id), keep=600)


def _run(store: Store, owner: str, key: str = "k") -> Hold:
    work = Work("m1")
    claim = store.claim(key, work, owner=owner, lease=600, keep=600, limits=Limits())
    assert claim.outcome == "won"
    return Hold(key, owner, claim.fence, claim.attempt, work)


def _letter(letter_id: str) -> DeadLetter:
    return DeadLetter(id=letter_id, reason="failed", message=b"{}")


@pytest.fixture(params=["redis", "postgres"])
def wire(request: pytest.FixtureRequest, address_of: Callable[[str], Address]) -> Iterator[Wire]:
    address = address_of(request.param)
    with Proxy.for_url(address.url) as proxy, address.opened() as direct:
        _warm_up(direct)
        with replace(address, url=proxy.url(address.url)).opened() as store:
            store.ping()
            yield Wire(proxy, store, direct)


def _warm_up(store: Store) -> None:
    """Let the server learn every script, so that the lost reply is the answer and not a request for the script."""
    store.reserve("warm", token="t", message_id="m", ttl=60)
    store.confirm("warm", token="t", message_id="m", ttl=60)
    store.release("warm", token="t")
    store.free("warm", message_id="m")
    hold = _run(store, "o", "warm")
    store.extend([Beat(hold, 60)])
    store.retry(hold, delay=0, keep=60)
    store.complete(_run(store, "o2", "warm"), keep=60, result=None)
    store.bury(_run(store, "o", "warm2"), _letter("warm"), keep=60)
    store.replay_letter("warm", by="", reason="", keep=60)
    store.mark_replayed("warm")
    store.put_letter(_letter("warm2"), keep=60)
    store.discard_letter("warm2", by="", reason="")
    store.get("warm")


def test_reserve(wire: Wire) -> None:  # rule 4: celery-once and celery-singleton lose the message here
    wire.lose_reply()
    answer = wire.store.reserve("r", token=MARK, message_id="m1", ttl=30)
    assert (wire.proxy.dropped, answer.outcome, answer.message_id) == (1, "won", "m1")
    other = wire.direct.reserve("r", token="t2", message_id="m2", ttl=30)
    assert other == Reservation("pending", "m1", MARK, "pending")


def test_reserve_by_take_over(wire: Wire) -> None:  # rule 4
    wire.direct.reserve("r", token="t1", message_id="m1", ttl=30)
    wire.lose_reply()
    answer = wire.store.reserve("r", token=MARK, message_id="m2", ttl=30, take_over="t1")
    assert (wire.proxy.dropped, answer.outcome, answer.message_id) == (1, "won", "m1")


def test_confirm(wire: Wire) -> None:  # rule 4
    wire.direct.reserve("r", token=MARK, message_id="m1", ttl=30)
    wire.lose_reply()
    assert wire.store.confirm("r", token=MARK, message_id="m1", ttl=600)
    assert wire.proxy.dropped == 1
    assert wire.direct.reserve("r", token="t2", message_id="m2", ttl=30).outcome == "duplicate"


def test_release(wire: Wire) -> None:  # rule 4
    wire.direct.reserve("r", token=MARK, message_id="m1", ttl=30)
    wire.lose_reply()
    wire.store.release("r", token=MARK)
    assert wire.proxy.dropped == 1
    assert wire.direct.reserve("r", token="t2", message_id="m2", ttl=30).outcome == "won"


def test_free(wire: Wire) -> None:  # rule 4
    wire.direct.reserve("r", token="t1", message_id=MARK, ttl=30)
    wire.lose_reply()
    wire.store.free("r", message_id=MARK)
    assert wire.proxy.dropped == 1
    assert wire.direct.reserve("r", token="t2", message_id="m2", ttl=30).outcome == "won"


def test_claim(wire: Wire) -> None:  # rule 4: the attempt is counted once
    wire.lose_reply()
    hold = _run(wire.store, MARK)
    assert (wire.proxy.dropped, hold.fence, hold.attempt) == (1, 1, 1)
    record = wire.direct.get("k")
    assert record is not None
    assert (record.owner, record.attempts, record.crashes) == (MARK, 1, 0)


def test_claim_of_a_slot(wire: Wire) -> None:  # rule 4, D2: one does not stand in one's own way
    one = Limits(slot="s", slots=1)
    wire.lose_reply()
    answer = wire.store.claim("k", Work("m1"), owner=MARK, lease=60, keep=600, limits=one)
    assert (wire.proxy.dropped, answer.outcome) == (1, "won")


def test_extend(wire: Wire) -> None:  # rule 4
    hold = wire.run(MARK)
    wire.lose_reply()
    assert wire.store.extend([Beat(hold, 60, progress=40)]) == ["held"]
    assert wire.proxy.dropped == 1


def test_complete(wire: Wire) -> None:  # rule 4
    hold = wire.run(MARK)
    wire.lose_reply()
    wire.store.complete(hold, keep=600, result=b"[1]")
    record = wire.direct.get("k")
    assert record is not None
    assert (wire.proxy.dropped, record.state, record.result) == (1, "done", b"[1]")


@pytest.mark.parametrize(
    ("ending", "attempts", "crashes", "interruptions"),
    [("failed", 1, 0, 0), ("crashed", 1, 1, 0), ("interrupted", 0, 0, 1)],
)
def test_retry(wire: Wire, ending: str, attempts: int, crashes: int, interruptions: int) -> None:  # rule 4
    hold = wire.run(MARK)
    wire.lose_reply()
    wire.store.retry(hold, delay=5, keep=600, ending=ending)  # type: ignore[arg-type]  # parametrized
    record = wire.direct.get("k")
    assert record is not None
    assert (wire.proxy.dropped, record.state) == (1, "waiting")
    assert (record.attempts, record.crashes, record.interruptions) == (attempts, crashes, interruptions)


def test_bury(wire: Wire) -> None:  # rule 4: one letter
    depth = wire.direct.letter_stats().depth
    hold = wire.run(MARK)
    wire.lose_reply()
    assert wire.store.bury(hold, _letter("L1"), keep=600) == "L1"
    record = wire.direct.get("k")
    assert record is not None
    assert (wire.proxy.dropped, record.state, record.generation) == (1, "dead", 1)
    assert wire.direct.letter_stats().depth == depth + 1


def test_put_letter(wire: Wire) -> None:  # rule 4: one letter
    depth = wire.direct.letter_stats().depth
    wire.lose_reply()
    assert wire.store.put_letter(_letter(MARK), keep=600) == MARK
    assert (wire.proxy.dropped, wire.direct.letter_stats().depth) == (1, depth + 1)


def test_replay(wire: Wire) -> None:  # rule 4, D7: one replay is counted
    wire.bury()
    wire.lose_reply()
    letter = wire.store.replay_letter(MARK, by="ann", reason="fixed", keep=600)
    record = wire.direct.get("k")
    assert record is not None
    assert (wire.proxy.dropped, letter.state, record.state, record.replays) == (1, "replaying", "waiting", 1)


def test_mark_replayed(wire: Wire) -> None:  # rule 4
    wire.bury()
    wire.direct.replay_letter(MARK, by="ann", reason="fixed", keep=600)
    wire.lose_reply()
    assert wire.store.mark_replayed(MARK)
    assert wire.proxy.dropped == 1


def test_two_replies_in_a_row(wire: Wire) -> None:  # A13: retried, with the third try's answer
    wire.lose_reply(times=2)
    assert _run(wire.store, MARK).attempt == 1
    assert wire.proxy.dropped == 2


def test_it_gives_up_in_the_end(wire: Wire) -> None:  # A13: bounded
    wire.lose_reply(times=100)
    with pytest.raises(StoreUnavailable) as caught:
        _run(wire.store, MARK)
    assert caught.value.__cause__ is not None
    assert 2 <= wire.proxy.dropped <= 10


def test_a_server_that_refuses(wire: Wire) -> None:  # A13
    wire.proxy.refuse()
    assert _fails_within_bound(wire.store)
    wire.proxy.accept()
    assert _run(wire.store, "o1").attempt == 1


def test_a_server_that_hangs(wire: Wire) -> None:  # A13
    wire.proxy.hang()
    assert _fails_within_bound(wire.store)
    wire.proxy.resume()
    assert wire.store.get("nobody") is None


def test_the_ping_tells(wire: Wire) -> None:  # base.Store.ping
    wire.store.ping()
    wire.proxy.refuse()
    with pytest.raises(StoreUnavailable):
        wire.store.ping()


def _fails_within_bound(store: Store) -> bool:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.get("k")
    return time.monotonic() - began < BOUND
