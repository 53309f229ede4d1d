"""What only the PostgreSQL store has: migrations, rights, connections, plans, and texts a database cannot hold."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from task_contract.errors import ConfigurationError, ContractError, StoreUnavailable
from task_contract.stores import open_store, postgres
from task_contract.stores.base import FACETS, Beat, DeadLetter, Filter, Hold, Limits, Work
from task_contract.stores.postgres import PostgresStore
from tests.proxy import Proxy

KEEP = 600.0


@pytest.fixture
def store(postgres_url: str, schema: str) -> Iterator[PostgresStore]:
    with opened(postgres_url, schema) as store:
        yield store


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        yield connection


@contextmanager
def opened(url: str, schema: str, **settings: Any) -> Iterator[PostgresStore]:
    store = PostgresStore(url, schema=schema, **settings)
    try:
        yield store
    finally:
        store.close()


def run(store: PostgresStore, key: str = "k", owner: str = "o", **limits: Any) -> Hold:
    work = Work(f"m-{key}")
    claim = store.claim(key, work, owner=owner, lease=30, keep=KEEP, limits=Limits(**limits))
    assert claim.outcome == "won"
    return Hold(key, owner, claim.fence, claim.attempt, work)


def letter(letter_id: str = "L1", **values: Any) -> DeadLetter:
    return DeadLetter(**{"id": letter_id, "reason": "failed", "message": b"body", **values})


def only(facet: str, value: str, **more: Any) -> Filter:
    if facet:
        more[facet] = value
    return Filter(**more)


def with_options(url: str, options: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}options={quote(options)}"


class TestMigration:
    def test_eight_processes_start_at_once(self, postgres_url: str, schema: str, admin: psycopg.Connection) -> None:
        code = (
            "import sys, time\n"
            "from task_contract.stores.base import Limits, Work\n"
            "from task_contract.stores.postgres import PostgresStore\n"
            "url, schema, key, start = sys.argv[1:]\n"
            "time.sleep(max(0, float(start) - time.time()))\n"
            "store = PostgresStore(url, schema=schema)\n"
            "print(store.claim(key, Work(key), owner='o', lease=9, keep=9, limits=Limits()).outcome)\n"
            "store.close()\n"
        )
        start = str(time.time() + 2)
        processes = [
            subprocess.Popen([sys.executable, "-c", code, postgres_url, schema, f"k{n}", start], stdout=subprocess.PIPE)
            for n in range(8)
        ]
        assert [process.communicate(timeout=60)[0].strip() for process in processes] == [b"won"] * 8
        applied = admin.execute(f'SELECT version FROM "{schema}".migrations ORDER BY 1').fetchall()
        assert applied == [(number,) for number, _ in postgres._migrations()[1:]]

    def test_it_can_be_repeated(self, store: PostgresStore) -> None:
        newest = postgres._migrations()[-1][0]
        assert [store.migrate(), store.migrate()] == [newest, newest]

    def test_an_older_schema_is_brought_up_to_date(
        self, postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        all_of_them = list(postgres._migrations())
        with monkeypatch.context() as patched, opened(postgres_url, schema) as older:
            patched.setattr(postgres, "_MIGRATIONS", all_of_them[:3])
            assert older.migrate() == 2
        with opened(postgres_url, schema) as newer:
            run(newer)

    def test_a_newer_schema_is_refused(self, postgres_url: str, schema: str, admin: psycopg.Connection) -> None:
        with opened(postgres_url, schema) as store:
            store.migrate()
        admin.execute(f'INSERT INTO "{schema}".migrations (version) VALUES (9999)')
        with opened(postgres_url, schema) as store:
            with pytest.raises(ContractError, match=r"version 9999.*upgrade"):
                store.get("k")
            with pytest.raises(ContractError, match=r"version 9999.*upgrade"):
                store.migrate()

    def test_a_schema_that_was_dropped_is_made_again(self, store: PostgresStore, admin: psycopg.Connection) -> None:
        run(store)
        admin.execute(f'DROP SCHEMA "{store._schema}" CASCADE')
        assert store.get("k") is None
        run(store)

    def test_the_check_is_made_once(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        run(store, "k1")
        monkeypatch.setattr(store, "_prepare", lambda: pytest.fail("checked again"))
        run(store, "k2")

    @pytest.mark.parametrize("name", ["", 'a"b', "a'b", "a b", "a;b", "a%b", "a$b", "x" * 64, "ü" * 32])
    def test_a_name_that_is_none_is_refused(self, postgres_url: str, name: str) -> None:
        with pytest.raises(ConfigurationError, match="not a schema name"):
            PostgresStore(postgres_url, schema=name)

    def test_namespaces_stay_apart(self, postgres_url: str, schema: str, admin: psycopg.Connection) -> None:
        names = [f"{schema}{mark}x" for mark in "-._"]
        try:
            for name in names:
                store = open_store(postgres_url, namespace=name)
                assert store.get("k") is None
                store.claim("k", Work("m"), owner="o", lease=30, keep=KEEP, limits=Limits())
                store.close()
        finally:
            for name in names:
                admin.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')

    @pytest.mark.parametrize(
        ("query", "namespace", "schema"),
        [
            ("", "task-contract", "task_contract"),
            ("", "a-b.c_d", "a-b.c_d"),
            ("?schema=s", "a", "s"),
            ("?schema=a%2Db&connect_timeout=3", "x", "a-b"),
            ("?schema=", "a", "a"),
        ],
    )
    def test_a_namespace_is_a_schema(self, query: str, namespace: str, schema: str) -> None:
        store = open_store(f"postgresql://u@127.0.0.1:1/db{query}", namespace=namespace)
        assert isinstance(store, PostgresStore)
        assert store._schema == schema

    def test_a_name_may_need_quotes(self, postgres_url: str, schema: str, admin: psycopg.Connection) -> None:
        name = f"{schema}-Select-Ü"
        try:
            with opened(postgres_url, name) as store:
                store.complete(run(store), keep=KEEP, result=b"1")
        finally:
            admin.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


class TestRights:
    @pytest.fixture
    def role(self, admin: psycopg.Connection, schema: str) -> Iterator[str]:
        may = admin.execute("SELECT rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        if may != (True,):
            pytest.skip("this role may not make roles")
        name = f"{schema}_role"
        admin.execute(f'CREATE ROLE "{name}" NOLOGIN')
        admin.execute(f'GRANT "{name}" TO current_user')
        yield name
        admin.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')

    @pytest.fixture
    def as_role(self, postgres_url: str, role: str) -> str:
        return with_options(postgres_url, f"-c role={role}")

    def test_without_create_it_says_what_to_do(self, as_role: str, schema: str) -> None:
        with (
            opened(as_role, schema) as store,
            pytest.raises(ContractError, match=r"may not change that.*migrate\(\).*GRANT") as caught,
        ):
            store.get("k")
        assert isinstance(caught.value.__cause__, psycopg.errors.InsufficientPrivilege)

    def test_without_usage_it_says_what_to_do(self, store: PostgresStore, as_role: str, schema: str) -> None:
        store.migrate()
        with opened(as_role, schema) as poor, pytest.raises(ContractError, match=r"GRANT USAGE"):
            poor.get("k")

    def test_every_verb_works_with_the_rights_it_names(
        self, store: PostgresStore, admin: psycopg.Connection, as_role: str, role: str, schema: str
    ) -> None:
        store.migrate()
        admin.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{role}"')
        admin.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{role}"')
        with opened(as_role, schema) as worker:
            for _, verb in verbs(worker):
                verb()


class TestConnections:
    def test_terminated_ones_heal_within_one_call(self, store: PostgresStore, admin: psycopg.Connection) -> None:
        store.migrate()
        barrier = threading.Barrier(4)

        def together(connection: psycopg.Connection[Any]) -> int:
            barrier.wait(10)
            return connection.info.backend_pid

        def hold_one(_: int) -> int:
            return store._pool.run(together)

        with ThreadPoolExecutor(4) as threads:
            pids = list(threads.map(hold_one, range(4)))
        assert len(set(pids)) == 4
        for pid in pids:
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        run(store)
        assert not {connection.info.backend_pid for connection in store._pool._idle} & set(pids)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_a_forked_child_has_its_own(self, store: PostgresStore) -> None:
        run(store, "before")
        mine = backend(store)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                run(store, "child")
                os.write(write, str(backend(store)).encode())
                store.close()
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            theirs = answer.read()
        os.waitpid(child, 0)
        assert int(theirs) != mine
        assert backend(store) == mine
        run(store, "after")

    def test_a_lost_reply_is_asked_for_again(self, postgres_url: str, schema: str) -> None:
        with Proxy.for_url(postgres_url) as proxy, opened(proxy.url(postgres_url), schema) as store:
            store.migrate()
            proxy.drop_reply(b".claim(")
            hold = run(store)
            assert (hold.fence, hold.attempt) == (1, 1)
            proxy.drop_reply(b".complete(")
            store.complete(hold, keep=KEEP, result=b"1")
            proxy.drop_reply(b".reserve(")
            assert store.reserve("k", token="t", message_id="m", ttl=30).outcome == "won"
            assert proxy.dropped == 3

    def test_a_silent_server_is_given_up(self, postgres_url: str, schema: str) -> None:
        with Proxy.for_url(postgres_url) as proxy, opened(proxy.url(postgres_url), schema, timeout=0.3) as store:
            run(store)
            proxy.hang()
            started = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                store.get("k")
            assert time.monotonic() - started < 10
            assert isinstance(caught.value.__cause__, psycopg.OperationalError)
            proxy.resume()
            assert store.get("k") is not None

    def test_a_lock_that_is_not_given_back_is_given_up(self, store: PostgresStore, postgres_url: str) -> None:
        hold = run(store)
        with psycopg.connect(postgres_url) as other, opened(postgres_url, store._schema, timeout=0.2) as hasty:
            other.execute(f'SELECT FROM "{store._schema}".records FOR UPDATE')
            with pytest.raises(StoreUnavailable, match="timeout"):
                hasty.complete(hold, keep=KEEP, result=None)
        store.complete(hold, keep=KEEP, result=None)

    def test_no_server(self) -> None:
        with opened("postgresql://postgres@127.0.0.1:1/postgres", "s") as store, pytest.raises(StoreUnavailable):
            store.ping()

    def test_the_options_of_a_url_arrive_as_written(self, postgres_url: str, schema: str) -> None:
        mark = "&" if "?" in postgres_url else "?"
        url = f"{postgres_url}{mark}options=-c%20work_mem%3D8MB&schema={schema}&application_name=my%20a%2Bp%26p"
        store = open_store(url)
        assert isinstance(store, PostgresStore)
        assert store._schema == schema
        settings = "SELECT current_setting('work_mem'), current_setting('application_name')"
        assert store._query(settings, ()) == [("8MB", "my a+p&p")]
        store.close()

    def test_a_url_that_is_none(self) -> None:
        with pytest.raises(ConfigurationError, match="not a PostgreSQL URL"):
            PostgresStore("postgresql://localhost/db?nonsense=1")

    def test_behind_a_pooler_that_takes_no_options(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        real = store._open

        def pooler(**parameters: Any) -> Any:
            if "options" in parameters:
                raise psycopg.OperationalError("FATAL: unsupported startup parameter in options: jit")
            return real(**parameters)

        monkeypatch.setattr(store, "_open", pooler)
        run(store)

    def test_an_isolation_that_would_break_claims_is_refused(self, postgres_url: str, schema: str) -> None:
        url = with_options(postgres_url, r"-c default_transaction_isolation=repeatable\ read")
        with opened(url, schema) as store, pytest.raises(ContractError, match="read committed"):
            store.get("k")

    def test_a_search_path_does_not_matter(self, postgres_url: str, schema: str) -> None:
        with opened(with_options(postgres_url, "-c search_path="), schema) as store:
            for _, verb in verbs(store):
                verb()

    @pytest.mark.parametrize("verb", range(18))
    def test_a_verb_is_one_round_trip(self, store: PostgresStore, tmp_path: Path, verb: int) -> None:
        steps = verbs(store)
        for _, step in steps[:verb]:
            step()
        store.migrate()
        store.get("k")
        log = tmp_path / "protocol"
        with log.open("wb") as file:
            store._pool.run(lambda connection: connection.pgconn.trace(file.fileno()))
            steps[verb][1]()
            store._pool.run(lambda connection: connection.pgconn.untrace())
        said = [line.split("\t")[3] for line in log.read_text(errors="replace").splitlines() if "\tF\t" in line]
        assert said == ["Parse", "Bind", "Describe", "Execute", "Sync"], steps[verb][0]


def backend(store: PostgresStore) -> int:
    return store._pool.run(lambda connection: connection.info.backend_pid)


def verbs(store: PostgresStore) -> list[tuple[str, Callable[[], object]]]:
    """Each verb once, in an order in which each has something to do."""
    held: list[Hold] = []
    return [
        ("reserve", lambda: store.reserve("p", token="t", message_id="m", ttl=30, record_key="k")),
        ("confirm", lambda: store.confirm("p", token="t", message_id="m", ttl=30, record_key="k")),
        ("release", lambda: store.release("p", token="t")),
        ("free", lambda: store.free("p", message_id="m")),
        ("claim", lambda: held.append(run(store, slot="s", slots=9))),
        ("extend", lambda: store.extend([Beat(held[-1], 30, progress=5)])),
        ("complete", lambda: store.complete(held[-1], keep=KEEP, result=b"1", reservation="p")),
        ("retry", lambda: store.retry(Hold("k1", "o", 1, 1, Work("m")), delay=0, keep=KEEP)),
        ("get", lambda: store.get("k")),
        ("put_letter", lambda: store.put_letter(letter("L0"), keep=KEEP)),
        ("bury", lambda: store.bury(Hold("k2", "o", 1, 1, Work("m")), letter(), keep=KEEP, reservation="p")),
        ("get_letter", lambda: store.get_letter("L1")),
        ("page_letters", lambda: store.page_letters(Filter(reason="failed"))),
        ("letter_stats", store.letter_stats),
        ("replay_letter", lambda: store.replay_letter("L1", by="me", reason="why", keep=KEEP)),
        ("mark_replayed", lambda: store.mark_replayed("L1")),
        ("discard_letter", lambda: store.discard_letter("L0", by="me", reason="why")),
        ("expire", store.expire),
    ]


class TestTexts:
    HOSTILE = ("a\x00b", "a\ud800b", "\udfff", "a\x00\x00\ud83d", "\ufdd0", "x" * 100_000, "😀" * 3_000)

    @pytest.mark.parametrize("text", HOSTILE, ids=ascii)
    def test_a_burial_keeps_everything(self, store: PostgresStore, text: str) -> None:
        names = (*FACETS, "key", "causation_id", "error", "traceback", "worker")
        buried = letter(**dict.fromkeys(names, text), details={text: text})
        store.bury(run(store), buried, keep=KEEP)
        found = store.get_letter("L1")
        assert found is not None
        assert found.body() == buried.body()
        assert getattr(store.get("k"), "last_error", None) == buried.summary()
        assert store.letter_stats().reasons == {text: 1}
        for facet in FACETS:
            assert [each.id for each in store.page_letters(only(facet, text)).letters] == ["L1"]
            assert store.page_letters(only(facet, text + "x")).letters == ()

    @pytest.mark.parametrize("text", HOSTILE[:5], ids=ascii)
    def test_a_lost_record_is_replayed_from_it(
        self, store: PostgresStore, admin: psycopg.Connection, text: str
    ) -> None:
        store.bury(run(store), letter(message_id=text, key=text, causation_id=text, subject=text), keep=KEEP)
        admin.execute(f'DELETE FROM "{store._schema}".records')
        store.replay_letter("L1", by=text, reason=text, keep=KEEP)
        found = store.get("k")
        assert found is not None
        assert (found.state, found.message_id, found.key, found.causation_id, found.subject) == ("waiting", *[text] * 4)

    def test_a_connection_survives_them(self, store: PostgresStore) -> None:
        run(store)
        before = backend(store)
        store.put_letter(letter(subject="\x00"), keep=KEEP)
        store.extend([Beat(Hold("k\x00", "o\ud800", 1, 1, Work("m")), 30, progress=1, note="\x00")])
        assert backend(store) == before

    def test_two_of_them_stay_two(self, store: PostgresStore) -> None:
        run(store, "a\x00")
        run(store, "a\ufffd")
        run(store, "a\ud800")
        run(store, "a\ud801")
        run(store, "a")


class TestLettersByTheThousand:
    COUNT = 50_000

    @pytest.fixture
    def full(self, store: PostgresStore, admin: psycopg.Connection) -> PostgresStore:
        """Not analyzed, on purpose: the planner knows nothing of these rows."""
        store.migrate()
        columns = ", ".join(f'"{name}"' for name in FACETS)
        values = ", ".join(f"'{name}-' || g % 4" for name in FACETS)
        admin.execute(
            f'INSERT INTO "{store._schema}".letters '
            f"(id, state, failed_at, expires_at, key, causation_id, body, {columns}) "
            f"SELECT 'L' || g, CASE g % 9 WHEN 0 THEN 'discarded' ELSE 'open' END, 1000000 + g / 3, 9999999999999, "
            f"'', '', %s, {values} FROM generate_series(1, {self.COUNT}) g".replace("% ", "%% "),
            (letter().body(),),
        )
        return store

    @pytest.mark.parametrize("closed", [False, True])
    @pytest.mark.parametrize("facet", ["", *FACETS])
    def test_a_page_reads_no_more_than_a_page(
        self, full: PostgresStore, facet: str, closed: bool, admin: psycopg.Connection
    ) -> None:
        where = only(facet, f"{facet}-3", closed=closed)
        first = full.page_letters(where)
        assert len(first.letters) == 50
        arguments = (
            [None, 51, closed, None, None, *cursor_of(first.cursor), [getattr(where, name) for name in FACETS]],
            [None, 51, closed, None, None, 0, "", [getattr(where, name) for name in FACETS]],
            [None, 51, closed, None, None, 0, "", ["nowhere" if name == facet else "" for name in FACETS]],
        )
        for each in arguments if facet else arguments[:2]:
            scanned, fetched = work_of(admin, full, "page_letters", each)
            assert scanned == 0
            assert fetched <= 60

    def test_the_statistics_read_no_letters(self, full: PostgresStore, admin: psycopg.Connection) -> None:
        found = full.letter_stats()
        assert found.depth == self.COUNT - self.COUNT // 9
        assert sum(found.reasons.values()) == found.depth
        scanned, fetched = work_of(admin, full, "letter_stats", [None])
        assert scanned == 0
        assert fetched <= 2

    def test_all_pages_together_are_all_letters(self, full: PostgresStore) -> None:
        where, cursor = Filter(queue="queue-1"), ""
        found: list[DeadLetter] = []
        while True:
            page = full.page_letters(where, limit=500, cursor=cursor)
            found += page.letters
            cursor = page.cursor
            if not cursor:
                break
        order = [(each.failed_at, int(each.store_key or 0)) for each in found]
        assert order == sorted(order, reverse=True)
        assert len(found) == sum(1 for g in range(1, self.COUNT + 1) if g % 4 == 1 and g % 9)


def cursor_of(cursor: str) -> tuple[int, str]:
    at, _, letter_id = cursor.partition("-")
    return int(at), letter_id


def work_of(connection: psycopg.Connection, store: PostgresStore, verb: str, arguments: list[Any]) -> tuple[int, int]:
    """How many letters one call read from the table from end to end, and how many by an index."""
    with connection.transaction():
        before = letters_read(connection, store)
        connection.execute(store._statements[verb], arguments).fetchall()
        after = letters_read(connection, store)
    return after[0] - before[0], after[1] - before[1]


def letters_read(connection: psycopg.Connection, store: PostgresStore) -> tuple[int, int]:
    row = connection.execute(
        "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables "
        "WHERE schemaname = %s AND relname = 'letters'",
        (store._schema,),
    ).fetchone()
    assert row is not None
    return row[0], row[1]


class TestTogether:
    def test_a_count_is_right_whatever_happens_at_once(self, store: PostgresStore, admin: psycopg.Connection) -> None:
        def bury_and_close(n: int) -> None:
            store.bury(run(store, f"k{n}"), letter(f"L{n}", reason=f"r{n % 3}"), keep=KEEP)
            if n % 4 == 0:
                store.discard_letter(f"L{n}", by="me", reason="")
            if n % 50 == 0:
                store.letter_stats()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(bury_and_close, range(1200)))
        found = store.letter_stats()
        expected = {f"r{r}": sum(1 for n in range(1200) if n % 3 == r and n % 4) for r in range(3)}
        assert (found.depth, dict(found.reasons)) == (900, expected)
        rows = admin.execute(f'SELECT count(*) FROM "{store._schema}".tallies').fetchone()
        assert rows is not None
        assert rows[0] <= 1001
        admin.execute(f'TRUNCATE "{store._schema}".letters')
        assert store.letter_stats().depth == 0

    def test_heartbeats_that_share_records_do_not_wait_for_each_other(self, store: PostgresStore) -> None:
        beats = [Beat(run(store, f"k{n:03}"), 30) for n in range(100)]

        def beat(backwards: int) -> int:
            return store.extend(beats[::-1] if backwards else beats).count("held")

        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(beat, [0, 1] * 20)) == {100}

    def test_slots_and_suspects_neither_overflow_nor_deadlock(self, store: PostgresStore) -> None:
        for n in range(40):
            hold = run(store, f"k{n}")
            store.retry(hold, delay=0, keep=KEEP, ending="crashed")

        def claim(n: int) -> str:
            limits = Limits(crashes=2, slot=f"s{n % 2}", slots=3)
            answer = store.claim(f"k{n}", Work("m"), owner="o2", lease=30, keep=KEEP, limits=limits)
            return answer.reason or answer.outcome

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(claim, range(40)))
        assert answers.count("won") == 1
        assert set(answers) == {"won", "suspect"}

        def claim_innocent(n: int) -> str:
            limits = Limits(slot=f"s{n % 2}", slots=3)
            return store.claim(f"n{n}", Work("m"), owner="o", lease=30, keep=KEEP, limits=limits).outcome

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(claim_innocent, range(40)))
        assert answers.count("won") == 5  # six places, and a suspect has one of them

    def test_a_confirmation_and_a_burial_at_once_leave_no_reservation(self, store: PostgresStore) -> None:
        def race(n: int) -> None:
            key = f"k{n}"
            hold = run(store, key)
            steps = [
                lambda: store.confirm(key, token="t", message_id=hold.work.message_id, ttl=3600, record_key=key),
                lambda: store.bury(hold, letter(f"L{n}"), keep=KEEP, reservation=key),
            ]
            with ThreadPoolExecutor(2) as pair:
                list(pair.map(lambda step: step(), steps))
            assert store.reserve(key, token="t2", message_id="m2", ttl=30, record_key=key).outcome == "won"

        for n in range(100):
            race(n)
