"""Records in Redis: one script per verb, one round trip each, by the server's clock.

A record is one packed string that expires by itself. All keys of a store share one hash tag, so that a script finds
them on one node of a cluster.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

try:
    from redis import exceptions
    from redis.connection import Connection
except ImportError as error:  # pragma: no cover
    raise ImportError("a redis:// store needs the redis client: pip install 'task-contract[redis]'") from error

from task_contract.errors import StoreUnavailable
from task_contract.stores.base import (
    FACETS,
    ROW_FIELDS,
    SEEN_IDS,
    Beat,
    BeatAnswer,
    Claim,
    DeadLetter,
    Ending,
    Filter,
    Hold,
    LetterStats,
    Limits,
    Page,
    Record,
    Reservation,
    Row,
    Store,
    Work,
    check_limit,
    datetime_ms,
    decode_cursor,
    encode_cursor,
    from_ms,
    refuse_letter,
    settle,
    to_ms,
)
from task_contract.stores.pool import Pool, patiently
from task_contract.stores.redis_routes import find_route, recognised

log = logging.getLogger(__name__)

#: Leases renewed by one script: it holds up the server for less than a millisecond or two.
BEATS_PER_CALL = 100
#: How long a burial waits for a replica, where there is one: at most this, and at most half of the client's timeout.
REPLICA_WAIT_MS = 500
#: How often the store looks whether there are replicas.
REPLICAS_KNOWN_FOR = 30.0

#: What a reply holds as it is; the rest is text.
_RAW = frozenset(name for name in ROW_FIELDS if not isinstance(getattr(Row(), name), str))


class Script(NamedTuple):
    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """A script with the shared parts its first line asks for."""
    folder = files("task_contract.stores") / "lua"
    body = (folder / f"{name}.lua").read_text("utf-8")
    used = body.partition("\n")[0].removeprefix("-- uses:").replace(",", " ").split()
    source = "".join((folder / f"{part}.lua").read_text("utf-8") for part in used) + body
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


class RedisStore(Store):
    def __init__(
        self, url: str, *, namespace: str = "task-contract", timeout: float = 1.0, max_connections: int = 50
    ) -> None:
        self.url, self.namespace = url, namespace
        self._prefix = "{" + namespace + "}:"
        self._route = find_route(url, timeout)
        self._pool: Pool[Connection] = Pool(
            self._route.connect, Connection.disconnect, size=max_connections, timeout=timeout
        )
        self._timeout = timeout
        self._replicas, self._replicas_known_at = False, float("-inf")

    # Enqueue.

    def reserve(
        self,
        key: str,
        *,
        token: str,
        message_id: str,
        ttl: float,
        payload_hash: str = "",
        record_key: str = "",
        take_over: str = "",
    ) -> Reservation:
        outcome, holder, held_by, state = self._run(
            "reserve", key, token, message_id, to_ms(ttl), payload_hash, record_key, take_over
        )
        return Reservation(_text(outcome), _text(holder), _text(held_by), _text(state))  # type: ignore[arg-type]

    def confirm(
        self,
        key: str,
        *,
        token: str,
        message_id: str,
        ttl: float,
        payload_hash: str = "",
        record_key: str = "",
        until_done: bool = False,
    ) -> bool:
        what = token, message_id, to_ms(ttl), payload_hash, record_key, int(until_done)
        return bool(self._run("confirm", key, *what))

    def release(self, key: str, *, token: str) -> bool:
        return bool(self._run("release", key, token))

    def free(self, key: str, *, message_id: str) -> bool:
        return bool(self._run("free", key, message_id))

    # Execution.

    def claim(self, key: str, work: Work, *, owner: str, lease: float, keep: float, limits: Limits) -> Claim:
        attempts, crashes, interruptions, suspects, slot, slots = limits
        reply = self._run(
            "claim",
            key,
            owner,
            to_ms(lease),
            to_ms(keep),
            attempts,
            crashes,
            interruptions,
            int(suspects),
            slot,
            slots,
            SEEN_IDS,
            *work,
        )
        outcome, fence, attempt, crashed, wait, reason, message_id, has_result, result = reply
        return Claim(
            outcome.decode(),
            fence,
            attempt,
            crashed,
            wait / 1000,
            reason.decode(),
            _text(message_id),
            has_result == 1,
            result,
        )

    def extend(self, beats: Sequence[Beat]) -> list[BeatAnswer]:
        answers: list[BeatAnswer] = []
        for start in range(0, len(beats), BEATS_PER_CALL):
            arguments = [part for beat in beats[start : start + BEATS_PER_CALL] for part in _beat(beat)]
            answers += [answer.decode() for answer in self._run("extend", *arguments)]
        return answers

    def complete(self, hold: Hold, *, keep: float, result: bytes | None, reservation: str = "") -> None:
        self._end("complete", hold, keep, int(result is not None), result or b"", reservation)

    def retry(
        self,
        hold: Hold,
        *,
        delay: float,
        keep: float,
        error: str = "",
        ending: Ending = "failed",
        interruptions: int = 20,
    ) -> None:
        self._end("retry", hold, keep, to_ms(delay), error, ending, interruptions)

    def bury(self, hold: Hold, letter: DeadLetter, *, keep: float, reservation: str = "") -> str:
        body = (letter.summary(), reservation, letter.id, letter.body(), *_indexed(letter))
        return _text(self._end("bury", hold, keep, *body, durable=True)[2])

    def _end(self, verb: str, hold: Hold, keep: float, *arguments: Any, durable: bool = False) -> list[Any]:
        key, owner, fence, attempt, work, _slot = hold
        reply: list[Any] = self._run(verb, key, owner, fence, attempt, to_ms(keep), *arguments, *work, durable=durable)
        answer = reply[0].decode()
        if answer not in ("ok", "again"):
            settle(answer, verb, key, reply[1].decode())
        return reply

    def get(self, key: str) -> Record | None:
        reply = self._run("get", key)
        return None if reply is None else Record.from_row(_row(reply))

    # Dead letters.

    def put_letter(self, letter: DeadLetter, *, keep: float) -> str:
        self._run("put_letter", letter.id, to_ms(keep), letter.body(), *_indexed(letter), durable=True)
        return letter.id

    def get_letter(self, letter_id: str) -> DeadLetter | None:
        reply = self._run("get_letter", letter_id)
        return None if reply is None else _letter(reply)

    def page_letters(self, where: Filter, *, limit: int = 50, cursor: str = "") -> Page:
        check_limit(limit)
        at, letter_id = decode_cursor(cursor)
        since = "" if where.since is None else datetime_ms(where.since)
        until = "" if where.until is None else datetime_ms(where.until)
        facets = where.facets()
        found, last_at, last_id = self._run(
            "page_letters",
            int(where.closed),
            limit,
            at or "",
            letter_id,
            since,
            until,
            *(facets.get(name, "") for name in FACETS),
        )
        next_cursor = encode_cursor(int(last_at), _text(last_id)) if last_at else ""
        return Page(tuple(_letter(reply) for reply in found), next_cursor)

    def replay_letter(self, letter_id: str, *, by: str, reason: str, keep: float) -> DeadLetter:
        answer, state, *rest = self._run("replay_letter", letter_id, by, reason, to_ms(keep))
        refuse_letter(_text(answer), "replay", letter_id, _text(state))
        return _letter(rest[0])

    def mark_replayed(self, letter_id: str) -> bool:
        return bool(self._run("mark_replayed", letter_id))

    def discard_letter(self, letter_id: str, *, by: str, reason: str) -> bool:
        answer, state = self._run("discard_letter", letter_id, by, reason)
        if answer == b"again":
            return False
        refuse_letter(_text(answer), "discard", letter_id, _text(state))
        return True

    def letter_stats(self) -> LetterStats:
        depth, oldest, reasons = self._run("letter_stats")
        counts = dict(zip((_text(reason) for reason in reasons[::2]), reasons[1::2], strict=True))
        return LetterStats(depth, from_ms(int(oldest)), counts)

    # Housekeeping.

    def expire(self, limit: int = 1000) -> int:
        return int(self._run("expire", limit))

    def ping(self) -> None:
        self.command("PING")

    def findings(self) -> list[tuple[Literal["error", "warning"], str, str]]:
        try:
            policy = _text(self.command("CONFIG", "GET", "maxmemory-policy")[1])
        except StoreUnavailable as error:
            return [("warning", f"Redis does not tell its maxmemory-policy: {error}", "see that it is noeviction")]
        if policy == "noeviction":
            return []
        what = f"Redis evicts keys when memory is full (maxmemory-policy {policy}): claims and results would vanish"
        return [("error", what, "set maxmemory-policy noeviction")]

    def close(self) -> None:
        self._pool.clear()

    def command(self, *words: str | int) -> Any:
        """Any other command, on the server that has our keys: for `check` and for tests."""
        return self._patiently(lambda: self._converse(words), str(words[0]))

    # Inside.

    def _run(self, name: str, *arguments: Any, durable: bool = False) -> Any:
        now = self.now_ms()
        code = script(name)
        words = (code.sha, 1, self._prefix, "" if now is None else now, *arguments)
        return self._patiently(lambda: self._evaluate(code, words, durable), name)

    def _evaluate(self, code: Script, words: tuple[Any, ...], durable: bool) -> Any:
        if durable:
            return self._evaluate_durably(code, words)
        return self._pool.run(lambda connection: _evaluate(connection, code, words))

    def _evaluate_durably(self, code: Script, words: tuple[Any, ...]) -> Any:
        replies: list[Any] = []

        def converse(connection: Connection) -> None:
            replies.append(_evaluate(connection, code, words))
            self._await_replica(connection, code.name)

        try:
            self._pool.run(converse)
        except (exceptions.RedisError, OSError) as error:
            if not replies:
                raise
            log.warning("%s is stored, but whether a replica has it is unknown: %s", code.name, error)
        return replies[0]

    def _converse(self, words: Sequence[str | int]) -> Any:
        return self._pool.run(lambda connection: _ask(connection, *words))

    def _patiently(self, operation: Callable[[], Any], what: str) -> Any:
        try:
            return patiently(operation, self._recover, what)
        except exceptions.RedisError as error:  # out of memory, no permission, cannot persist: no use in asking again
            raise StoreUnavailable(f"the store refused {what}: {error}") from error

    def _recover(self, error: Exception) -> bool:
        """Whether asking again may help, after learning what the error tells of where to ask."""
        error = recognised(error)
        if isinstance(error, _ELSEWHERE):
            self._route.learn(error)
            self._pool.clear()
        return isinstance(error, _TRANSIENT)

    def _has_replicas(self, connection: Connection) -> bool:
        if time.monotonic() - self._replicas_known_at > REPLICAS_KNOWN_FOR:
            self._replicas_known_at = time.monotonic()  # also if there is no answer: ask again later, not each time
            self._replicas = b"connected_slaves:0" not in _ask(connection, "INFO", "replication")
        return self._replicas

    def _await_replica(self, connection: Connection, verb: str) -> None:
        """What is stored is stored: nothing in here may fail the verb."""
        limit = _replica_wait_ms(connection.socket_timeout or self._timeout)
        try:
            confirmed = not self._has_replicas(connection) or _ask(connection, "WAIT", 1, limit) > 0
        except exceptions.ResponseError as error:  # refused, as by an ACL
            log.warning("%s is stored, but the server does not tell whether a replica has it: %s", verb, error)
            return
        if not confirmed:
            log.warning("%s: no replica confirmed within %s ms; a failover now may lose it", verb, limit)


#: The server we talked to is gone, or is not the one that has our keys.
_ELSEWHERE = (exceptions.ConnectionError, exceptions.MovedError, exceptions.ReadOnlyError, OSError)
_TRANSIENT = (
    *_ELSEWHERE,
    exceptions.TimeoutError,
    # The slot is on its way to another node. Not followed there: what has not been moved yet would be missing, and
    # work that is running here would be won there.
    exceptions.AskError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
)


def _ask(connection: Connection, *words: str | int) -> Any:
    connection.send_command(*words)
    return connection.read_response()


def _replica_wait_ms(timeout: float) -> int:
    return max(1, min(REPLICA_WAIT_MS, round(timeout * 1000 / 2)))  # 0 would be for ever


def _evaluate(connection: Connection, code: Script, words: tuple[Any, ...]) -> Any:
    connection.send_command("EVALSHA", *words)
    try:
        return connection.read_response()
    except exceptions.NoScriptError:
        connection.send_command("EVAL", code.source, *words[1:])
        return connection.read_response()


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def _beat(beat: Beat) -> tuple[Any, ...]:
    hold, lease, draining, progress, note, silent_for = beat
    return (
        hold.key,
        hold.owner,
        hold.fence,
        to_ms(lease),
        int(draining),
        progress,
        note,
        to_ms(silent_for) if silent_for >= 0 else -1,
    )


def _indexed(letter: DeadLetter) -> tuple[str, ...]:
    return (*letter.facets(), letter.key, letter.causation_id)


def _row(reply: list[Any]) -> Row:
    values = dict(zip(ROW_FIELDS, reply, strict=True))
    named: dict[str, Any] = {name: value if name in _RAW else _text(value) for name, value in values.items()}
    return Row(**named)


def _letter(reply: list[Any]) -> DeadLetter:
    letter_id, state, store_key, generation, replays, failed_at, expires_at, closed_at, by, reason, body = reply
    del letter_id  # it is in the body too
    return DeadLetter.restore(
        body,
        state=_text(state),
        store_key=_text(store_key),
        generation=generation,
        replays=replays,
        failed_at=from_ms(failed_at),
        expires_at=from_ms(expires_at),
        closed_at=from_ms(closed_at),
        closed_by=_text(by),
        closed_reason=_text(reason),
    )
