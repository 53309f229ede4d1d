"""The mutants: each a mistake that somebody has made before, as a change of the text.

`old` must stand in the file exactly once. When the code moves on, the mutant fails loudly and moves along with it.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """In a file below `task_contract/stores`."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    name: str
    kind: str
    edits: tuple[Edit, ...]
    #: Only tests that leave the store its own clock can notice.
    by_real_clock: bool = False

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.name}"


def redis(name: str, *edits: tuple[str, str, str], by_real_clock: bool = False) -> Mutant:
    return Mutant(name, "redis", tuple(Edit(*edit) for edit in edits), by_real_clock)


def memory(name: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, "memory", tuple(Edit("transitions.py", *edit) for edit in edits))


def postgres(name: str, *edits: tuple[str, str, str], by_real_clock: bool = False) -> Mutant:
    return Mutant(name, "postgres", tuple(Edit(*edit) for edit in edits), by_real_clock)


CLAIM, RECORD = "lua/claim.lua", "lua/record.lua"
PAGE = "lua/page_letters.lua"
EXECUTION, ENQUEUE, LETTERS = (
    f"sql/postgres/{name}.sql" for name in ("0003_execution", "0002_enqueue", "0004_letters")
)

FILE_LETTER = "file_letter(ARGV[9], ARGV[10], FACETS_AT, tonumber(ARGV[6]), ARGV[2], row.generation + 1, row.replays)\n"

MUTANTS: tuple[Mutant, ...] = (
    # Redis: the scripts.
    redis(
        "no fencing: the owner's name is enough",
        (RECORD, "return row.owner == owner and row.fence == fence", "return row.owner == owner"),
    ),
    redis(
        "anybody may end a run",
        (RECORD, "if not owns(row, ARGV[3], tonumber(ARGV[4])) then", "if false then"),
    ),
    redis(
        "plain delete on release",
        (
            "lua/release.lua",
            "if not place or place.token ~= ARGV[3] or place.confirmed == 1 then",
            "if not place then",
        ),
    ),
    redis(
        "leases by the client's clock",
        (
            "redis.py",
            '"" if now is None else now',
            "round(time.time() * 1000) if now is None else now",
        ),
        by_real_clock=True,
    ),
    redis(
        "attempt counted after the run",
        (CLAIM, "row.slot = row.attempts + 1, NOW,", "row.slot = row.attempts, NOW,"),
        (
            RECORD,
            "  leave_places(key, row)\n  row.state, row.lease_until",
            "  leave_places(key, row)\n  row.attempts = row.attempts + 1\n  row.state, row.lease_until",
        ),
    ),
    redis("take-over without a crash", (CLAIM, "  row.crashes = row.crashes + 1\n  return true", "  return true")),
    redis(
        "take-over one tick early",
        (CLAIM, "elseif row.lease_until > NOW then", "elseif row.lease_until > NOW + 1 then"),
    ),
    redis(
        "one's own reservation called a duplicate",
        ("lua/reserve.lua", "if place and place.token ~= token and (", "if place and ("),
    ),
    redis("a result of nothing is no result", (CLAIM, "done and row.has_result or 0", "row.result ~= '' and 1 or 0")),
    redis("no result is a result", (CLAIM, "done and row.has_result or 0", "done and 1 or 0")),
    redis(
        "suspects run together", (CLAIM, "elseif suspect and places_taken(SUSPECTS, key) > 0 then", "elseif false then")
    ),
    redis(
        "buried for crashes without proof",
        (CLAIM, "local alone = row.suspect == 1 or not needs_lock", "local alone = true"),
    ),
    redis(
        "slot not freed on retry",
        (
            "lua/retry.lua",
            "  settle(ARGV[2], row, 'waiting'",
            "  row.slot = ''\n  settle(ARGV[2], row, 'waiting'",
        ),
    ),
    redis(
        "heartbeat loses the slot",
        ("lua/extend.lua", "  renew_lease(key, row, NOW + ", "  row.lease_until = (NOW + "),
    ),
    redis(
        "replay without a look at the generation",
        ("lua/replay_letter.lua", "row.generation ~= letter.generation or (", "("),
    ),
    redis(
        "letter written though the burial is refused",
        (
            "lua/bury.lua",
            "local verdict = ending(row, 'dead')\n",
            "local verdict = ending(row, 'dead')\n" + FILE_LETTER,
        ),
    ),
    redis("reservation survives the burial", ("lua/bury.lua", "  release_place(ARGV[8], ARGV[WORK_AT])\n", "")),
    redis(
        "confirm overwrites another's reservation",
        ("lua/confirm.lua", "if place and place.token ~= token then", "if false then"),
    ),
    redis("an early copy runs at once", (CLAIM, "elseif row.not_before > NOW then", "elseif false then")),
    redis("mismatch ignored", (CLAIM, "  return answer('mismatch')\n", "  return answer(row.state)\n")),
    redis(
        "a repeated ending is refused",
        (RECORD, "  elseif row.state == target then\n    return 'again'\n", ""),
    ),
    redis(
        "a message that ran may mismatch",
        (CLAIM, "elseif differ() and not ran(message_id) then", "elseif differ() then"),
    ),
    redis(
        "a former generation's message cannot mismatch",
        (CLAIM, "elseif differ() and not ran(message_id) then", "elseif differ() and not stale(message_id) then"),
    ),
    redis("a repeated claim renews no lease", (CLAIM, "    renew_lease(key, row, NOW + lease)\n", "")),
    redis(
        "a repeated claim lets its slot lapse",
        (CLAIM, "    renew_lease(key, row, NOW + lease)\n", "    row.lease_until = NOW + lease\n"),
    ),
    redis(
        "a new generation forgets who ran",
        (CLAIM, "fence, generation + 1, former\n", "fence, generation + 1, ''\n"),
    ),
    redis("a named culprit runs again", (CLAIM, " or row.crashes >= max_crashes then\n  --", " then\n  --")),
    redis("a completed replay stays open", ("lua/complete.lua", "  close_replay(row.letter_id)\n", "")),
    redis(
        "a late confirmation reserves what is done",
        ("lua/confirm.lua", " or (row.state == 'done' and ARGV[8] == '1')", ""),
    ),
    redis(
        "anybody may free a reservation", (RECORD, "if place and place.message_id == message_id then", "if place then")
    ),
    redis(
        "an expired letter leaves its indexes to the next of its id",
        ("lua/letters.lua", "if redis.call('ZSCORE', EXPIRY, id) then", "if false then"),
    ),
    redis(
        "a short page forgets where it stopped",
        (PAGE, "        return { found, last_at, last_id }\n", "        return { found, '', '' }\n"),
    ),
    # Memory and SQLite: the same in Python.
    memory(
        "no fencing", ("return row.owner == hold.owner and row.fence == hold.fence", "return row.owner == hold.owner")
    ),
    memory("attempt not counted at the claim", ("    row.attempts += 1\n    row.started_at", "    row.started_at")),
    memory(
        "interruptions without bound", ("if row.draining and row.interruptions < interruptions:", "if row.draining:")
    ),
    memory(
        "one's own claim called busy",
        ("    if row.owner == asked.owner:", '    if row.owner == asked.owner and row.state == "":'),
    ),
    memory(
        "a stale copy of dead work runs again",
        ('if row.state == "dead" and not _stale', 'if row.state == "dead" and _stale'),
    ),
    memory(
        "a message that ran may mismatch",
        ("_differ(row, work) and not _ran(row, work.message_id)", "_differ(row, work)"),
    ),
    memory(
        "a former generation's message cannot mismatch",
        ("_differ(row, work) and not _ran(", "_differ(row, work) and not _stale("),
    ),
    memory(
        "a repeated claim renews no lease",
        ("        _lease(row, asked.now + asked.lease)\n        return Claimed(", "        return Claimed("),
    ),
    memory("a new generation forgets who ran", ("row.generation + 1, _former_ids(row)", 'row.generation + 1, ""')),
    memory("a named culprit runs again", (" or row.crashes >= asked.limits.crashes:", ":")),
    memory("a late confirmation reserves what is done", ('ended = ("dead", "done") if until_done else', "ended =")),
    memory("an old letter stays open", ("superseded=row.letter_id if step.row else", "superseded=")),
    # PostgreSQL: the same in SQL.
    postgres(
        "no fencing",
        (EXECUTION, "WHEN r.owner <> p_owner OR r.fence <> p_fence THEN 'lost'", "WHEN r.owner <> p_owner THEN 'lost'"),
        (EXECUTION, "r.owner = p_owner AND r.fence = p_fence\n", "r.owner = p_owner\n"),
    ),
    postgres(
        "plain delete on release",
        (ENQUEUE, "s.store_key = p_key AND s.token = p_token AND NOT s.confirmed", "s.store_key = p_key"),
    ),
    postgres(
        "leases by the client's clock",
        (
            "postgres.py",
            'self._row("claim", self.now_ms(), key,',
            'self._row("claim", round(time.time() * 1000) if self.now is None else self.now_ms(), key,',
        ),
        by_real_clock=True,
    ),
    postgres(
        "replay without a look at the generation",
        (LETTERS, "r.generation <> l.generation OR r.state NOT IN", "r.state NOT IN"),
    ),
    postgres(
        "reservation survives the burial",
        (
            LETTERS,
            "DELETE FROM {schema}.reservations s WHERE s.store_key = p_reservation AND s.message_id = p_message_id;",
            "NULL;",
        ),
    ),
    postgres(
        "a message that ran may mismatch",
        (EXECUTION, "ELSIF NOT v_ran AND r.payload_hash <> ''", "ELSIF r.payload_hash <> ''"),
    ),
    postgres(
        "a repeated claim renews no lease",
        (
            EXECUTION,
            "SET lease_until = v_now + p_lease, expires_at = greatest(t.expires_at, v_now + p_lease)",
            "SET lease_until = t.lease_until",
        ),
    ),
    postgres(
        "a former copy runs again",
        (EXECUTION, "NOT v_ran AND c_former || v_word <> ALL (v_ids)", "NOT v_ran"),
    ),
    postgres("a named culprit runs again", (EXECUTION, " OR r.crashes >= p_crashes;", ";")),
    postgres(
        "a completed replay stays open",
        (EXECUTION, "WHERE l.id = v_letter_id AND l.state = 'replaying'", "WHERE l.id = v_letter_id AND false"),
    ),
    postgres(
        "a late confirmation reserves what is done",
        (ENQUEUE, "(r.state = 'dead' OR (p_until_done AND r.state = 'done'))", "r.state = 'dead'"),
    ),
    postgres(
        "anybody may free a reservation",
        (ENQUEUE, "s.store_key = p_key AND s.message_id = p_message_id AND", "s.store_key = p_key AND"),
    ),
    postgres(
        "an expired letter keeps its id",
        (LETTERS, "DELETE FROM {schema}.letters l WHERE l.id = p_id AND l.expires_at <= v_now;", "NULL;"),
    ),
)
