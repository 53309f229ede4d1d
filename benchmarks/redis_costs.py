"""What a record costs a Redis server: bytes, and round trips per verb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any
from uuid import uuid4

import redis

from benchmarks.samples import KEEP, LEASE, LIMITS, RESERVED, RESULT, RETAIN, WINDOW, Job, job, letter
from task_contract.stores.base import Beat, Filter, Hold, Store

Verb = Callable[[], object]


def finished_record_bytes(store: Store, client: redis.Redis, prefix: str) -> dict[str, int]:
    """`MEMORY USAGE` of all keys that one finished record has: by itself, and with its enqueue's reservation."""
    one = job(1, uuid4().hex[:12])
    store.complete(_claimed(store, one), keep=RETAIN, result=RESULT)
    alone = _bytes(client, prefix)
    told = {"token": one.token, "message_id": one.work.message_id, "payload_hash": one.work.payload_hash}
    store.reserve(one.key, ttl=RESERVED, **told)
    store.confirm(one.key, ttl=WINDOW, **told)
    return {"record": alone, "record and reservation": _bytes(client, prefix)}


def _bytes(client: redis.Redis, prefix: str) -> int:
    return sum(int(_usage(client, key)) for key in client.scan_iter(match=f"{prefix}*", count=1000))


def _usage(client: redis.Redis, key: Any) -> Any:
    return client.memory_usage(key, samples=0)


def _claimed(store: Store, one: Job) -> Hold:
    claim = store.claim(one.key, one.work, owner=one.owner, lease=LEASE, keep=KEEP, limits=LIMITS)
    return one.hold(claim.fence, claim.attempt)


def round_trips(store: Store, client: redis.Redis) -> dict[str, list[str]]:
    """What the server was sent for each verb, once the store is connected and its scripts are loaded."""
    for verb in verbs(store).values():
        verb()
    return {name: _sent(client, verb) for name, verb in verbs(store).items()}


def _sent(client: redis.Redis, verb: Verb) -> list[str]:
    with watching(client) as sent:
        verb()
    return sent


@contextmanager
def watching(client: redis.Redis) -> Iterator[list[str]]:
    """The commands that arrive at the server meanwhile, by `MONITOR`; not those that scripts call."""
    sent: list[str] = []
    with client.monitor() as monitor:
        _read_to_mark(client, monitor)
        yield sent
        sent += [seen["command"].split()[0].upper() for seen in _read_to_mark(client, monitor)]


def _read_to_mark(client: redis.Redis, monitor: Any) -> list[dict[str, Any]]:
    marker = f"mark-{uuid4().hex}"
    client.echo(marker)
    seen = iter(monitor.next_command, None)
    return [
        each for each in takewhile(lambda each: marker not in each["command"], seen) if each["client_type"] != "lua"
    ]


def verbs(store: Store) -> dict[str, Verb]:
    """Every verb, each ready to be called once, in this order."""
    series = uuid4().hex[:12]
    done, waiting, dead, sent = (job(number, series) for number in range(4))
    told = {"token": sent.token, "message_id": sent.work.message_id}
    filed, buried = letter(5, series), letter(6, series)
    holds: dict[str, Hold] = {}

    def claim(one: Job) -> Verb:
        return lambda: holds.__setitem__(one.key, _claimed(store, one))

    return {
        "reserve": lambda: store.reserve(sent.key, ttl=RESERVED, record_key=sent.key, **told),
        "confirm": lambda: store.confirm(sent.key, ttl=WINDOW, record_key=sent.key, **told),
        "release": lambda: store.release(sent.key, token=sent.token),
        "free": lambda: store.free(sent.key, message_id=sent.work.message_id),
        "claim": claim(done),
        "extend": lambda: store.extend([Beat(holds[done.key], LEASE)]),
        "complete": lambda: store.complete(holds[done.key], keep=RETAIN, result=RESULT),
        "get": lambda: store.get(done.key),
        "claim (another)": claim(waiting),
        "retry": lambda: store.retry(holds[waiting.key], delay=1, keep=KEEP),
        "claim (a third)": claim(dead),
        "bury": lambda: store.bury(holds[dead.key], buried, keep=KEEP),
        "put_letter": lambda: store.put_letter(filed, keep=KEEP),
        "get_letter": lambda: store.get_letter(buried.id),
        "page_letters": lambda: store.page_letters(Filter()),
        "replay_letter": lambda: store.replay_letter(buried.id, by="ann", reason="fixed", keep=KEEP),
        "mark_replayed": lambda: store.mark_replayed(buried.id),
        "discard_letter": lambda: store.discard_letter(filed.id, by="ann", reason="useless"),
        "letter_stats": store.letter_stats,
        "expire": store.expire,
        "ping": store.ping,
    }
