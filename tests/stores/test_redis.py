"""What only the Redis store has: scripts and their keys, one round trip, cluster, Sentinel, replicas, a full server."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import fields
from importlib.resources import files
from typing import Any

import pytest
import redis
from redis.connection import Connection, SSLConnection
from redis.crc import key_slot
from redis.exceptions import MovedError, ResponseError, TryAgainError
from redis.sentinel import Sentinel

from benchmarks.redis_costs import finished_record_bytes, round_trips, verbs, watching
from task_contract.errors import ConfigurationError, StoreUnavailable
from task_contract.stores import redis as redis_store
from task_contract.stores.base import FACETS, ROW_FIELDS, Beat, DeadLetter, Limits, Work
from task_contract.stores.redis import RedisStore, script
from task_contract.stores.redis_routes import recognised
from task_contract.testing.acts import (
    KEEP,
    bury,
    claim,
    finish,
    ids,
    letter,
    only,
    read,
    record,
    replay,
    run,
    wait,
)
from tests.proxy import Proxy
from tests.servers import PrivateRedis, RedisCluster, RedisSentinel
from tests.servers.process import free_port, wait_until

LUA = files("task_contract.stores") / "lua"
SHARED = {"record", "letters"}
SCRIPTS = sorted({file.name.removesuffix(".lua") for file in LUA.iterdir()} - SHARED)
#: What an enqueue's reservation lives while nobody confirms it: no verb may take nearly as long to give up.
RESERVATION = 30.0


@pytest.fixture
def store(redis_url: str, namespace: str) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_url, namespace=namespace)) as store:
        yield store


@pytest.fixture
def alone(private_redis: PrivateRedis) -> Iterator[RedisStore]:
    """A store with a server to itself."""
    with closing(RedisStore(private_redis.url, namespace="n")) as store:
        yield store


# --- scripts -------------------------------------------------------------------------------------------------------


def names_in(source: str, table: str) -> tuple[str, ...]:
    found = re.search(rf"^local {table} = \{{(.*?)\}}", source, re.MULTILINE | re.DOTALL)
    assert found, f"no table {table}"
    return tuple(re.findall(r"'(\w+)'", found[1]))


def test_a_row_and_its_work_have_one_order_in_both_languages() -> None:
    source = (LUA / "record.lua").read_text("utf-8")
    assert names_in(source, "FIELDS") == ROW_FIELDS
    assert names_in(source, "WORK") == Work._fields


def test_facets_are_counted_and_ordered_alike_in_both_languages() -> None:
    letters, replaying = ((LUA / f"{name}.lua").read_text("utf-8") for name in ("letters", "replay_letter"))
    count, reason = map(int, re.findall(r"^local FACETS, REASON = (\d+), (\d+)$", letters, re.MULTILINE)[0])
    assert (count, FACETS[reason - 1]) == (len(FACETS), "reason")
    (targets, numbers) = re.findall(r"^ +(row\..*) = (facets\[.*\])$", replaying, re.MULTILINE)[0]
    by_lua = dict(
        zip(re.findall(r"row\.(\w+)", targets), [int(each) for each in re.findall(r"\d+", numbers)], strict=True)
    )
    assert by_lua == {name: FACETS.index(name) + 1 for name in by_lua}
    assert by_lua


@pytest.mark.parametrize("bundled_first", [False, True], ids=["on PATH", "in the wheel"])
def test_every_script_loads_and_is_used(bundled_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()

    def note(name: str) -> redis_store.Script:
        used.add(name)
        return script(name)

    monkeypatch.setattr(redis_store, "script", note)
    with PrivateRedis(bundled_first=bundled_first) as server, server.client() as client:
        assert [client.script_load(script(name).source) for name in SCRIPTS] == [script(name).sha for name in SCRIPTS]
        with closing(RedisStore(server.url)) as store:
            for verb in verbs(store).values():
                verb()
    assert sorted(used) == SCRIPTS


def test_every_shared_part_is_asked_for_by_name() -> None:
    first_lines = [(LUA / f"{name}.lua").read_text("utf-8").partition("\n")[0] for name in SCRIPTS]
    assert all(line in ("-- uses: record", "-- uses: record, letters") for line in first_lines), first_lines


def test_one_round_trip_per_verb(private_redis: PrivateRedis, alone: RedisStore) -> None:
    with private_redis.client() as client:
        sent = round_trips(alone, client)
    assert sent.pop("ping") == ["PING"]
    assert sent == {verb: ["EVALSHA"] for verb in sent}


def test_many_leases_are_renewed_in_few_round_trips(private_redis: PrivateRedis, alone: RedisStore) -> None:
    beats = [Beat(run(alone, f"k{number}"), 30.0) for number in range(redis_store.BEATS_PER_CALL + 1)]
    with private_redis.client() as client:
        alone.extend(beats[:1])
        with watching(client) as sent:
            assert alone.extend(beats) == ["held"] * len(beats)
    assert sent == ["EVALSHA", "EVALSHA"]


def test_a_flush_of_the_scripts_heals(private_redis: PrivateRedis, alone: RedisStore) -> None:
    hold = run(alone)
    with private_redis.client() as client:
        client.script_flush()
        with watching(client) as sent:
            finish(alone, hold)
    assert sent == ["EVALSHA", "EVAL"]
    assert record(alone).state == "done"


def test_a_restart_that_forgets_everything_heals(private_redis: PrivateRedis, alone: RedisStore) -> None:
    hold = run(alone)
    private_redis.restart()
    finish(alone, hold)
    assert record(alone).state == "done"


@pytest.mark.parametrize(
    ("count", "size", "read_at_most"), [(700, 1, 500), (40, 200_000, 10)], ids=["many letters", "large letters"]
)
def test_a_page_reads_only_so_much(store: RedisStore, count: int, size: int, read_at_most: int) -> None:
    """Nobody else is served while a script runs: a page comes out short instead."""
    for number in range(count):
        kind = {"queue": "mail", "group": "new" if number else "old"}
        store.put_letter(letter(f"L{number:03}", traceback="x" * size, **kind), keep=KEEP)
        store.put_letter(letter(f"other-{number:03}", queue="print", group="old"), keep=KEEP)
    # The one letter that matches both is the last of either index.
    where = only(queue="mail", group="old")
    first = store.page_letters(where)
    assert first.letters == ()
    assert first.cursor
    assert ids(store, where) == ["L000"]
    assert len(store.page_letters(only(queue="mail"), limit=1000).letters) == read_at_most
    assert len(ids(store, only(queue="mail"), limit=1000)) == count


# --- keys ----------------------------------------------------------------------------------------------------------


def live_through_everything(store: RedisStore, *, lease: float = 30.0, keep: float = KEEP) -> None:
    """Leave a key of every kind behind."""
    limits = Limits(slot="mail", slots=9, crashes=2)
    store.reserve("r1", token="t", message_id="m", ttl=keep)
    store.reserve("r2", token="t", message_id="m", ttl=keep)
    store.confirm("r2", token="t", message_id="m", ttl=keep)
    run(store, "running", limits=limits, lease=lease, keep=keep)
    wait(store, run(store, "suspect", lease=lease, keep=keep), ending="crashed", keep=keep)
    run(store, "suspect", owner="o2", limits=limits, lease=lease, keep=keep)
    finish(store, run(store, "done", keep=keep), keep=keep)
    wait(store, run(store, "waiting", keep=keep), 0.001, keep=keep)
    facets: dict[str, Any] = dict.fromkeys(FACETS, "x")
    bury(store, run(store, "dead", keep=keep), "L1", keep=keep, **facets)
    bury(store, run(store, "replayed", keep=keep), "L2", keep=keep, **facets)
    replay(store, "L2", keep=keep)
    store.put_letter(letter("L3", **facets), keep=keep)
    store.discard_letter("L3", by="ann", reason="useless")


def test_every_key_is_of_the_namespace_and_expires_by_itself(private_redis: PrivateRedis, alone: RedisStore) -> None:
    live_through_everything(alone)
    with private_redis.client() as client:
        times_to_live = {key: client.pttl(key) for key in client.scan_iter()}
    assert all(key.startswith("{n}:") for key in times_to_live)
    kinds = {key.removeprefix("{n}:").partition(":")[0] for key in times_to_live}
    assert kinds == {"e", "r", "c", "s", "d", "x"}
    for_ever = {key for key, ttl in times_to_live.items() if ttl < 0}
    assert for_ever == {key for key in times_to_live if key.startswith("{n}:x:")}, "only the indexes of dead letters"


def test_nothing_is_left_once_everything_has_expired(private_redis: PrivateRedis, alone: RedisStore) -> None:
    live_through_everything(alone, lease=0.2, keep=0.2)

    def gone() -> bool:
        alone.expire()
        alone.letter_stats()
        return not client.keys()

    with private_redis.client() as client:
        wait_until(gone, "no key is left", seconds=20)


def test_a_letter_whose_body_is_gone_is_not_counted(private_redis: PrivateRedis, alone: RedisStore) -> None:
    """Nobody swept for a day after its retention: the body expired by itself, and the sweep cannot ask it."""
    alone.put_letter(letter("L1", queue="mail"), keep=0.01)
    with private_redis.client() as client:
        client.delete("{n}:d:L1")
        wait_until(lambda: alone.expire() > 0, "the letter is swept", seconds=20)
    assert alone.letter_stats().depth == 0
    assert dict(alone.letter_stats().reasons) == {}
    assert ids(alone, only(queue="mail")) == []


def test_two_namespaces_do_not_mix(redis_url: str, namespace: str) -> None:
    with (
        closing(RedisStore(redis_url, namespace=namespace)) as one,
        closing(RedisStore(redis_url, namespace=f"{namespace}-2")) as two,
    ):
        live_through_everything(one)
        assert [two.get(key) for key in ("running", "done", "dead")] == [None] * 3
        assert (ids(two), two.letter_stats().depth, two.get_letter("L1")) == ([], 0, None)
        assert claim(two, "running", limits=Limits(slot="mail", slots=1)).outcome == "won"
        assert two.reserve("r1", token="t2", message_id="m2", ttl=30).outcome == "won"
        assert record(one, "running").slot == "mail"


def test_a_finished_record_takes_at_most_700_bytes(private_redis: PrivateRedis, alone: RedisStore) -> None:
    with private_redis.client() as client:
        sizes = finished_record_bytes(alone, client, "{n}:")
    assert 0 < sizes["record"] < sizes["record and reservation"] <= 700


# --- text ----------------------------------------------------------------------------------------------------------

UNENCODABLE = pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "\x00", "a\x00\ud800é"], ids=ascii)


@UNENCODABLE
def test_text_that_is_no_utf8_comes_back_as_it_was(store: RedisStore, text: str) -> None:
    work: dict[str, Any] = dict.fromkeys(Work._fields, text)
    hold = run(store, text, owner=text, limits=Limits(slot=text, slots=1), **work)
    store.extend([Beat(hold, 30.0, progress=1, note=text)])
    found = record(store, text)
    assert [getattr(found, name) for name in (*Work._fields, "owner", "slot", "note")] == [text] * 11
    assert claim(store, "other", limits=Limits(slot=text, slots=1)).reason == "slots"
    store.retry(hold, delay=0, keep=KEEP, error=text)
    assert record(store, text).last_error == text


@UNENCODABLE
def test_a_reservation_may_be_of_any_text(store: RedisStore, text: str) -> None:
    place: dict[str, Any] = {"token": text, "message_id": text, "payload_hash": text}
    assert store.reserve(text, ttl=30, record_key=text, **place).outcome == "won"
    assert store.confirm(text, ttl=30, record_key=text, **place)
    answer = store.reserve(text, token="t2", message_id="m2", ttl=30, payload_hash=text)
    assert (answer.outcome, answer.message_id, answer.token) == ("duplicate", text, text)


@UNENCODABLE
def test_a_dead_letter_may_be_of_any_text(store: RedisStore, text: str) -> None:
    texts = {each.name for each in fields(DeadLetter) if each.type == "str"} - {
        "store_key",
        "closed_by",
        "closed_reason",
    }
    filled: dict[str, Any] = {**dict.fromkeys(texts, text), "details": {text: [text]}}
    bury(store, run(store, text, message_id=text), filled.pop("id"), **filled)
    found = read(store, text)
    assert {name: getattr(found, name) for name in filled} == filled
    for facet in FACETS:
        assert ids(store, only(**{facet: text})) == [text]
    assert dict(store.letter_stats().reasons) == {text: 1}
    assert store.replay_letter(text, by=text, reason=text, keep=KEEP).closed_by == text


# --- connections ---------------------------------------------------------------------------------------------------


def test_a_hundred_threads_share_few_connections(private_redis: PrivateRedis) -> None:
    with (
        closing(RedisStore(private_redis.url, max_connections=5, timeout=10)) as store,
        private_redis.client() as client,
    ):
        before = connections_ever(client)
        start = threading.Barrier(100)

        def work(number: int) -> None:
            start.wait()
            for turn in range(5):
                finish(store, run(store, f"{number}-{turn}"))

        with ThreadPoolExecutor(100) as threads:
            list(threads.map(work, range(100)))
        assert 1 <= connections_ever(client) - before <= 5
        assert len(client.keys("{task-contract}:r:*")) == 500


def connections_ever(client: redis.Redis) -> int:
    info: Any = client.info("stats")
    return int(info["total_connections_received"])


def test_connections_may_be_lost_any_number_of_times(private_redis: PrivateRedis, alone: RedisStore) -> None:
    for _ in range(250):  # redis-py's own pool counts what it made, and refuses the hundred-and-first
        alone.close()
        alone.ping()


def test_nothing_is_connected_before_it_is_used() -> None:
    RedisStore("redis://127.0.0.1:1/0").close()
    RedisStore("redis+sentinel://127.0.0.1:1/mymaster").close()
    RedisStore("redis+cluster://127.0.0.1:1").close()


# --- a server that will not have us --------------------------------------------------------------------------------


def refused(store: RedisStore) -> str:
    """What a verb says, and that it does not take long to say it."""
    started = time.monotonic()
    with closing(store), pytest.raises((StoreUnavailable, ConfigurationError)) as caught:
        claim(store)
    assert time.monotonic() - started < RESERVATION / 2
    assert caught.value.__cause__ is not None
    return str(caught.value)


def test_a_wrong_password_is_named(private_redis: PrivateRedis) -> None:
    with private_redis.client() as client:
        client.config_set("requirepass", "secret")
        host = f"127.0.0.1:{private_redis.port}/0"
        assert re.search("[Aa]uthenticat", refused(RedisStore(f"redis://{host}")))
        said = refused(RedisStore(f"redis://:wr0ng@{host}"))
        assert "password" in said
        assert "wr0ng" not in said
        with closing(RedisStore(f"redis://:secret@{host}")) as store:
            store.ping()


def test_a_user_without_the_right_is_named(private_redis: PrivateRedis) -> None:
    with private_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all", "-evalsha", "-eval")
    assert "permission" in refused(RedisStore(f"redis://bob:pw@127.0.0.1:{private_redis.port}/0"))


@contextmanager
def listening(answer: bytes) -> Iterator[int]:
    """Something that is no Redis: it says `answer` to whoever connects, or nothing at all."""

    def serve() -> None:
        with open_ones:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                if not answer:
                    silent.append(client)
                    continue
                with client:
                    client.recv(4096)
                    client.sendall(answer)

    silent: list[socket.socket] = []
    open_ones = threading.Lock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in silent:
                client.close()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00\x01\x02\r\n"], ids=ascii)
def test_what_is_not_a_redis_server_is_named(answer: bytes) -> None:
    with listening(answer) as port:
        assert re.search("Protocol|Timeout", refused(RedisStore(f"redis://127.0.0.1:{port}/0", timeout=0.2)))


def test_a_server_that_is_not_there_is_named() -> None:
    port = free_port()
    assert f"127.0.0.1:{port}" in refused(RedisStore(f"redis://127.0.0.1:{port}/0"))


def test_a_server_that_hangs_is_given_up_in_time(private_redis: PrivateRedis, alone: RedisStore) -> None:
    alone.ping()
    with paused(private_redis):
        assert "did not answer" in refused(alone)
    wait_until(lambda: answers(alone), "it answers again", seconds=20)


@contextmanager
def paused(server: PrivateRedis) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def answers(store: RedisStore) -> bool:
    try:
        store.ping()
    except StoreUnavailable:
        return False
    return True


# --- a full server -------------------------------------------------------------------------------------------------


def snapshot(client: redis.Redis) -> dict[str, Any]:
    return {key: client.dump(key) for key in client.scan_iter(count=1000)}


def full_server_verbs(store: RedisStore) -> dict[str, Callable[[], object]]:
    """Every verb that needs room, ready to be called."""
    hold = run(store)
    bury(store, run(store, "dead"), "L1", queue="mail")
    store.reserve("reserved", token="t", message_id="m1", ttl=30)
    return {
        "reserve": lambda: store.reserve("new", token="t", message_id="m", ttl=30),
        "confirm": lambda: store.confirm("reserved", token="t", message_id="m1", ttl=30),
        "claim": lambda: claim(store, "new"),
        "extend": lambda: store.extend([Beat(hold, 60.0)]),
        "complete": lambda: store.complete(hold, keep=KEEP, result=b"1", reservation="reserved"),
        "retry": lambda: wait(store, hold, 1),
        "bury": lambda: store.bury(hold, letter("L2"), keep=KEEP, reservation="reserved"),
        "put_letter": lambda: store.put_letter(letter("L3"), keep=KEEP),
        "replay_letter": lambda: replay(store, "L1"),
    }


NEED_ROOM = ("reserve", "confirm", "claim", "extend", "complete", "retry", "bury", "put_letter", "replay_letter")


@contextmanager
def full(client: redis.Redis) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    yield
    client.config_set("maxmemory", 0)


@pytest.mark.parametrize("verb", NEED_ROOM)
def test_a_full_server_refuses_a_verb_whole(private_redis: PrivateRedis, alone: RedisStore, verb: str) -> None:
    attempt = full_server_verbs(alone)[verb]
    with private_redis.client(encoding_errors="surrogateescape") as client:
        before = snapshot(client)
        with full(client), pytest.raises(StoreUnavailable, match="memory"):
            attempt()
        assert snapshot(client) == before
        attempt()
        assert snapshot(client) != before


def test_a_full_server_ends_what_it_has_begun(private_redis: PrivateRedis, alone: RedisStore) -> None:
    """These give room before they need some, and Redis lets a script that has written go on."""
    limits = Limits(slot="mail", slots=1)
    hold = run(alone, limits=limits)
    for letter_id in ("L1", "L2"):
        alone.put_letter(letter(letter_id, queue="mail"), keep=KEEP)
    replay(alone, "L2")
    with private_redis.client() as client, full(client):
        finish(alone, hold)
        alone.discard_letter("L1", by="ann", reason="useless")
        alone.mark_replayed("L2")
    assert (record(alone).state, read(alone, "L1").state, read(alone, "L2").state) == ("done", "discarded", "replayed")
    assert sorted(ids(alone, only(closed=True))) == ["L1", "L2"]
    assert ids(alone) == ids(alone, only(queue="mail")) == []
    assert claim(alone, "k2", limits=limits).outcome == "won"


def test_an_eviction_policy_is_a_finding(private_redis: PrivateRedis, alone: RedisStore) -> None:
    with private_redis.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        assert alone.findings() == []
        client.config_set("maxmemory-policy", "volatile-ttl")
        ((severity, what, remedy),) = alone.findings()
    assert severity == "error"
    assert "volatile-ttl" in what
    assert "noeviction" in remedy


def test_a_server_that_hides_its_configuration_is_a_warning() -> None:
    """Hosted Redis has no CONFIG command."""
    with PrivateRedis(["--rename-command", "CONFIG", ""]) as server, closing(RedisStore(server.url)) as store:
        ((severity, what, _),) = store.findings()
    assert severity == "warning"
    assert "maxmemory-policy" in what


# --- replicas ------------------------------------------------------------------------------------------------------


@contextmanager
def replica_of(master: PrivateRedis) -> Iterator[PrivateRedis]:
    with master.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)  # else it waits five seconds for more of them

        def online() -> bool:
            info: Any = client.info("replication")
            return bool(info["connected_slaves"] == 1 and info["slave0"]["state"] == "online")

        with PrivateRedis(["--replicaof", "127.0.0.1", str(master.port)]) as replica:
            wait_until(online, "the replica is in sync")
            yield replica


def test_a_burial_waits_for_a_replica(private_redis: PrivateRedis, alone: RedisStore) -> None:
    with replica_of(private_redis) as replica, private_redis.client() as client:
        bury(alone, run(alone, "k1"), "L1")
        alone.put_letter(letter("L0"), keep=KEEP)
        hold = run(alone, "k2")
        with watching(client) as sent:
            bury(alone, hold, "L2")
            alone.put_letter(letter("L3"), keep=KEEP)
        assert sent == ["EVALSHA", "WAIT", "EVALSHA", "WAIT"]
        with replica.client() as copy:
            assert {"{n}:d:L1", "{n}:d:L2", "{n}:d:L3"} <= set(copy.keys())


def test_a_burial_without_replicas_waits_for_nobody(private_redis: PrivateRedis, alone: RedisStore) -> None:
    bury(alone, run(alone, "k1"), "L1")
    hold = run(alone, "k2")
    with private_redis.client() as client, watching(client) as sent:
        bury(alone, hold, "L2")
    assert sent == ["EVALSHA"]


def test_a_replica_that_hangs_does_not_hold_up_a_burial(
    private_redis: PrivateRedis, alone: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    with replica_of(private_redis) as replica:
        hold = run(alone)
        with paused(replica), caplog.at_level(logging.WARNING):
            bury(alone, hold)
    assert record(alone).state == "dead"
    assert "no replica confirmed" in caplog.text


def test_a_replica_is_waited_for_for_half_of_the_patience_at_most(
    private_redis: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    with replica_of(private_redis) as replica, closing(RedisStore(private_redis.url, timeout=0.4)) as hasty:
        hold = run(hasty)
        with paused(replica), private_redis.client() as client, watching(client) as sent:
            bury(hasty, hold)
    assert sent == ["EVALSHA", "EVAL", "INFO", "WAIT"]  # once each
    assert record_state(private_redis) == "dead"
    assert "within 200 ms" in caplog.text


def record_state(server: PrivateRedis) -> str:
    with closing(RedisStore(server.url)) as store:
        return record(store).state


@pytest.mark.parametrize("timeout", [0.0001, 0.4, 1.0, 30.0])
def test_no_wait_is_for_ever_or_outlasts_the_client(timeout: float) -> None:
    assert 1 <= redis_store._replica_wait_ms(timeout) <= max(1, min(500, timeout * 500))


@pytest.mark.parametrize("denied", ["info", "wait"])
def test_a_burial_does_not_fail_because_the_replicas_are_a_secret(
    private_redis: PrivateRedis, caplog: pytest.LogCaptureFixture, denied: str
) -> None:
    with private_redis.client() as client, replica_of(private_redis):
        client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@all", f"-{denied}")
        url = f"redis://bob:pw@127.0.0.1:{private_redis.port}/0"
        with closing(RedisStore(url)) as store:
            assert bury(store, run(store)) == "L1"
            assert record(store).state == "dead"
            assert len(store._pool._idle) == 1
    assert "does not tell whether a replica has it" in caplog.text


@pytest.mark.parametrize("command", [b"INFO", b"WAIT"])
def test_a_burial_does_not_fail_because_a_reply_about_replicas_is_lost(
    private_redis: PrivateRedis, caplog: pytest.LogCaptureFixture, command: bytes
) -> None:
    with (
        replica_of(private_redis),
        Proxy.for_url(private_redis.url) as proxy,
        closing(RedisStore(proxy.url(private_redis.url), timeout=0.5)) as store,
    ):
        hold = run(store)
        proxy.drop_reply(command)
        assert bury(store, hold) == "L1"
        assert proxy.dropped == 1
        assert record(store).state == "dead"
    assert "whether a replica has it is unknown" in caplog.text


# --- cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[RedisCluster]:
    """For tests that move slots about or stop nodes, and put them back."""
    cluster = RedisCluster()
    try:
        yield cluster.start()
    finally:
        cluster.close()


class Slot:
    """The slot of a namespace, the node that has it, and one that has not."""

    def __init__(self, cluster: RedisCluster, namespace: str) -> None:
        clients = [node.client() for node in cluster.nodes]
        self.number = int(clients[0].execute_command("CLUSTER", "KEYSLOT", f"{{{namespace}}}:"))
        owner = next(index for index, client in enumerate(clients) if self._is_at(client))
        self.node, self.other = cluster.nodes[owner], cluster.nodes[(owner + 1) % len(clients)]
        self.clients, self.source, self.target = clients, clients[owner], clients[(owner + 1) % len(clients)]

    def _is_at(self, client: redis.Redis) -> bool:
        try:
            client.execute_command("CLUSTER", "COUNTKEYSINSLOT", self.number)
            client.execute_command("GET", self.key_in_it)
        except redis.exceptions.ResponseError:
            return False
        return True

    @property
    def key_in_it(self) -> str:
        return next(key for key in (f"probe{number}" for number in range(100_000)) if self._hashes_here(key))

    def _hashes_here(self, key: str) -> bool:
        return key_slot(key.encode()) == self.number

    def begin_move(self) -> None:
        self.target.execute_command("CLUSTER", "SETSLOT", self.number, "IMPORTING", _node_id(self.source))
        self.source.execute_command("CLUSTER", "SETSLOT", self.number, "MIGRATING", _node_id(self.target))

    def move_keys(self) -> None:
        keys = self.source.execute_command("CLUSTER", "GETKEYSINSLOT", self.number, 1000)
        if keys:
            self.source.execute_command("MIGRATE", "127.0.0.1", self.other.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self) -> None:
        for client in (self.target, self.source, *self.clients):
            client.execute_command("CLUSTER", "SETSLOT", self.number, "NODE", _node_id(self.target))


def _node_id(client: redis.Redis) -> str:
    return str(client.execute_command("CLUSTER", "MYID"))


@contextmanager
def cluster_store(url: str, namespace: str, **options: Any) -> Iterator[RedisStore]:
    with closing(RedisStore(url, namespace=namespace, **options)) as store:
        yield store


def test_any_node_leads_to_the_one_that_has_our_keys(own_cluster: RedisCluster, namespace: str) -> None:
    slot = Slot(own_cluster, namespace)
    for node in own_cluster.nodes:
        with cluster_store(f"redis+cluster://127.0.0.1:{node.port}", namespace) as store:
            run(store, f"k{node.port}")
    assert len(slot.source.keys(f"{{{namespace}}}:r:*")) == len(own_cluster.nodes)


def test_a_node_that_is_away_does_not_hide_the_others(own_cluster: RedisCluster, namespace: str) -> None:
    nodes = ",".join(f"127.0.0.1:{port}" for port in (free_port(), own_cluster.nodes[1].port))
    with cluster_store(f"redis+cluster://{nodes}", namespace) as store:
        run(store)
        assert record(store).state == "running"


def test_all_keys_are_in_one_slot(own_cluster: RedisCluster, namespace: str) -> None:
    with cluster_store(own_cluster.url, namespace) as store:
        live_through_everything(store)
    slot = Slot(own_cluster, namespace)
    keys = [str(key) for client in slot.clients for key in client.keys(f"*{namespace}*")]
    assert keys == slot.source.keys(f"*{namespace}*")
    assert {key_slot(key.encode()) for key in keys} == {slot.number}


def test_the_store_follows_a_slot_that_has_moved(own_cluster: RedisCluster, namespace: str) -> None:
    with cluster_store(own_cluster.url, namespace) as store:
        hold = run(store)
        slot = Slot(own_cluster, namespace)
        slot.begin_move()
        slot.move_keys()
        slot.end_move()
        finish(store, hold)
        assert slot.target.keys(f"*{namespace}*") == [f"{{{namespace}}}:r:k"]
        assert claim(store, owner="o2").outcome == "done"


@pytest.mark.parametrize("known", [False, True], ids=["scripts unknown there", "scripts known there"])
@pytest.mark.parametrize("moved", [False, True], ids=["record not moved", "record moved"])
def test_work_is_not_won_twice_while_its_slot_is_on_its_way(
    own_cluster: RedisCluster, namespace: str, moved: bool, known: bool
) -> None:
    """The old node sends everybody on to the new one, where the record may not be yet: better no answer than "won"."""
    with cluster_store(own_cluster.url, namespace) as store:
        run(store)
        slot = Slot(own_cluster, namespace)
        if known:
            slot.target.script_load(script("claim").source)
        slot.begin_move()
        if moved:
            slot.move_keys()
        try:
            outcome = claim(store, owner="o2").outcome
        except StoreUnavailable:
            outcome = "busy"
        assert outcome == "busy"
        slot.move_keys()
        slot.end_move()
        assert claim(store, owner="o2").outcome == "busy"


def test_a_node_that_dies_is_given_up_in_time_and_found_again(own_cluster: RedisCluster, namespace: str) -> None:
    with cluster_store(own_cluster.url, namespace) as store:
        run(store)
        slot = Slot(own_cluster, namespace)
        slot.node.kill()
        try:
            refused(store)
        finally:
            slot.node.start()
        wait_until(lambda: answers_claim(store), "the cluster answers again", seconds=60)


def test_a_node_that_hangs_is_given_up_in_time(own_cluster: RedisCluster, namespace: str) -> None:
    with cluster_store(own_cluster.url, namespace, timeout=0.3) as store:
        run(store)
        with paused(Slot(own_cluster, namespace).node):
            refused(store)
        wait_until(lambda: answers_claim(store), "the cluster answers again", seconds=60)


def answers_claim(store: RedisStore) -> bool:
    try:
        claim(store)
    except StoreUnavailable:
        return False
    return True


# --- Sentinel ------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_sentinel() -> Iterator[RedisSentinel]:
    sentinel = RedisSentinel()
    try:
        yield sentinel.start()
    finally:
        sentinel.close()


def port_of(store: RedisStore) -> int:
    found = re.search(rb"^tcp_port:(\d+)", store.command("INFO", "server"), re.MULTILINE)
    assert found
    return int(found[1])


def test_sentinel_names_the_server(redis_sentinel: RedisSentinel, namespace: str) -> None:
    with closing(RedisStore(redis_sentinel.url, namespace=namespace)) as store:
        assert port_of(store) == redis_sentinel.master.port
        run(store)
        with redis_sentinel.master.client() as client:
            assert client.keys(f"*{namespace}*") == [f"{{{namespace}}}:r:k"]


def test_the_store_follows_when_the_master_dies(own_sentinel: RedisSentinel, namespace: str) -> None:
    with closing(RedisStore(own_sentinel.url, namespace=namespace)) as store:
        bury(store, run(store))  # waits for the replica, so that the failover cannot lose it
        own_sentinel.master.kill()
        started = time.monotonic()
        wait_until(
            lambda: answers(store) and port_of(store) == own_sentinel.replica.port, "the replica is master", seconds=20
        )
        assert time.monotonic() - started < RESERVATION
        assert record(store).state == "dead"
        run(store, "k2")


def test_the_store_follows_an_ordered_failover(own_sentinel: RedisSentinel, namespace: str) -> None:
    with (
        closing(RedisStore(own_sentinel.url, namespace=namespace)) as store,
        redis.Redis(port=own_sentinel.port) as sentinel,
    ):
        bury(store, run(store))
        sentinel.execute_command("SENTINEL", "FAILOVER", own_sentinel.NAME)
        wait_until(
            lambda: answers(store) and port_of(store) == own_sentinel.replica.port, "the replica is master", seconds=20
        )
        wait_until(lambda: answers_claim(store), "it takes writes")
        assert record(store).state == "dead"


def test_a_service_that_no_sentinel_knows_is_named(redis_sentinel: RedisSentinel, namespace: str) -> None:
    url = redis_sentinel.url.replace(redis_sentinel.NAME, "nobody")
    assert "nobody" in refused(RedisStore(url, namespace=namespace))


# --- URLs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Connection]]:
    """What a store at this URL would connect to. Its Sentinels, if any, say that the master is at master:6380."""
    made: list[Connection] = []

    def note(connection: Connection) -> socket.socket:
        made.append(connection)
        raise OSError("only noted")

    monkeypatch.setattr(Connection, "_connect", note)
    monkeypatch.setattr(Sentinel, "discover_master", lambda *_: ("master", 6380))

    def connect(url: str) -> list[Connection]:
        with closing(RedisStore(url)) as store, pytest.raises(StoreUnavailable):
            store.ping()
        return made

    return connect


@pytest.fixture
def sentinels(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[str, int]]]:
    """The Sentinels that a URL names."""
    named: list[list[tuple[str, int]]] = []
    original = Sentinel.__init__

    def note(self: Sentinel, addresses: list[tuple[str, int]], *arguments: Any, **options: Any) -> None:
        named.append(addresses)
        original(self, addresses, *arguments, **options)  # type: ignore[no-untyped-call]  # as redis-py has it

    monkeypatch.setattr(Sentinel, "__init__", note)

    def read_url(url: str) -> list[tuple[str, int]]:
        RedisStore(url).close()
        return named[-1]

    return read_url


Connections = Callable[[str], list[Connection]]
Sentinels = Callable[[str], list[tuple[str, int]]]


def addresses(made: list[Connection]) -> list[tuple[str, int]]:
    return [(each.host, each.port) for each in made]


def login(connection: Connection) -> tuple[str | None, str | None, int]:
    return connection.username, connection.password, connection.db


@pytest.mark.parametrize(
    "option",
    [
        "decode_responses=True",
        "protocol=3",
        "encoding=utf-16",
        "encoding_errors=strict",
        "health_check_interval=1",
        "retry_on_timeout=True",
        "retry_on_error=1",
        "retry=3",
        "max_connections=1",
        "timeout=1",
    ],
)
def test_no_option_of_a_url_changes_what_the_store_relies_on(redis_url: str, namespace: str, option: str) -> None:
    with closing(RedisStore(f"{redis_url}?{option}", namespace=namespace)) as store:
        bury(store, run(store, "kü\ud800"))
        assert record(store, "kü\ud800").state == "dead"
        assert read(store).state == "open"
        store.findings()


@pytest.mark.parametrize("kind", ["redis://one", "redis+cluster://one", "redis+sentinel://one/mymaster"])
def test_ours_win_and_the_timeouts_of_a_url_win(connections: Connections, kind: str) -> None:
    made = connections(f"{kind}?socket_timeout=7&socket_connect_timeout=8&health_check_interval=9&protocol=3")
    assert (made[0].socket_timeout, made[0].socket_connect_timeout) == (7, 8)
    assert (made[0].health_check_interval, made[0].protocol) == (0, 2)
    assert made[0].encoder.decode_responses is False


@pytest.mark.parametrize("option", ["redis_connect_func=x", "nonsense=1", "ssl_ca_certs=x", "ssl_cert_reqs=required"])
@pytest.mark.parametrize("kind", ["redis://one", "redis+cluster://one", "redis+sentinel://one/mymaster"])
def test_an_option_that_cannot_be_is_refused_where_it_is_written(kind: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match="an option in the Redis URL"):
        RedisStore(f"{kind}?{option}")


@pytest.mark.parametrize("given", ["none", "CERT_NONE"])
def test_certificates_are_asked_for_in_celerys_words_too(connections: Connections, given: str) -> None:
    (made, *_) = connections(f"rediss://one?ssl_cert_reqs={given}")
    assert isinstance(made, SSLConnection)
    assert made.cert_reqs == ssl.CERT_NONE


def test_plain_url(connections: Connections) -> None:
    made = connections("redis://ann:p%40ss@one:7000/3")
    assert set(addresses(made)) == {("one", 7000)}
    assert login(made[0]) == ("ann", "p@ss", 3)


def test_plain_url_over_tls(connections: Connections) -> None:
    (first, *_) = connections("rediss://:secret@one/2?ssl_cert_reqs=none")
    assert isinstance(first, SSLConnection)
    assert first.cert_reqs == ssl.CERT_NONE
    assert login(first)[1:] == ("secret", 2)


def test_cluster_url_with_several_hosts_and_a_password(connections: Connections) -> None:
    made = connections("redis+cluster://ann:p%40ss@one:7000,two,three:7002")
    assert addresses(made) == [("one", 7000), ("two", 6379), ("three", 7002)]
    assert [login(each) for each in made] == [("ann", "p@ss", 0)] * 3


def test_cluster_url_over_tls(connections: Connections) -> None:
    (first, *_) = connections("rediss+cluster://:secret@one:7000?ssl_cert_reqs=none")
    assert isinstance(first, SSLConnection)
    assert (first.password, first.cert_reqs) == ("secret", ssl.CERT_NONE)


def test_sentinel_url_with_several_hosts_and_a_password(connections: Connections, sentinels: Sentinels) -> None:
    url = "redis+sentinel://ann:p%40ss@one:26380,two,three:26381/shop/3"
    assert sentinels(url) == [("one", 26380), ("two", 26379), ("three", 26381)]
    (first, *_) = connections(url)
    assert addresses([first]) == [("master", 6380)]
    assert login(first) == ("ann", "p@ss", 3)


def test_sentinel_url_without_a_database(connections: Connections) -> None:
    assert login(connections("redis+sentinel://one/shop")[0]) == (None, None, 0)


def test_sentinel_url_over_tls(connections: Connections) -> None:
    (first, *_) = connections("rediss+sentinel://:secret@one/shop?ssl_cert_reqs=none")
    assert isinstance(first, SSLConnection)
    assert (first.password, first.cert_reqs) == ("secret", ssl.CERT_NONE)


def test_sentinel_url_without_a_service_says_how() -> None:
    with pytest.raises(ConfigurationError, match="host:26379/mymaster/0") as caught:
        RedisStore("redis+sentinel://:secret@one:26379")
    assert "secret" not in str(caught.value)


def test_addresses_may_be_ipv6(connections: Connections, sentinels: Sentinels) -> None:
    assert sentinels("redis+sentinel://[::1]:26380,[::2]/shop") == [("::1", 26380), ("::2", 26379)]
    assert addresses(connections("redis+cluster://[::1]:7000,[::2]"))[:2] == [("::1", 7000), ("::2", 6379)]


@pytest.mark.parametrize(
    "url",
    [
        "redis://one:port/0",
        "redis+sentinel://one:port/shop",
        "redis+sentinel://one/shop/db",
        "redis+cluster://one:7000,two:port",
    ],
)
def test_a_url_that_cannot_work_is_refused_when_it_is_written(url: str) -> None:
    with pytest.raises(ConfigurationError):
        RedisStore(url)


def test_a_clusters_answer_is_recognised_by_its_text_too() -> None:  # redis-py 5 has it as a plain ResponseError
    moved = recognised(ResponseError("MOVED 7627 127.0.0.1:7002"))
    assert isinstance(moved, MovedError)
    assert (moved.host, moved.port) == ("127.0.0.1", 7002)
    assert isinstance(recognised(ResponseError("TRYAGAIN Multiple keys")), TryAgainError)
    plain = ResponseError("ERR no such thing")
    assert recognised(plain) is plain
