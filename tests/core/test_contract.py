"""The Contract: its store, its settings, its listeners."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

import task_contract
from task_contract import Contract, DeadLetter, Policy, errors, open_store
from task_contract.contract import default_path
from task_contract.errors import ConfigurationError, ContractError, StoreUnavailable
from task_contract.events import Event, write_log
from task_contract.stores import sqlite_url
from task_contract.stores.memory import MemoryStore
from task_contract.stores.sqlite import SQLiteStore


def test_without_a_store_records_stay_on_this_host_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # DESIGN 2: the default store
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    contract = Contract(source="my shop")
    assert isinstance(contract.store, SQLiteStore)
    assert contract.store.path == tmp_path / "task-contract" / "my_shop.db" == default_path("my shop")
    assert "this host only" in caplog.text
    assert next(finding.severity for finding in contract.check()) == "error"


def test_strict_refuses_a_store_that_is_not_shared() -> None:  # A18
    with pytest.raises(ConfigurationError, match="TASK_CONTRACT_STORE"):
        _ = Contract(strict=True).store


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # settings
    monkeypatch.setenv("TASK_CONTRACT_STORE", f"sqlite:///{tmp_path}/here.db")
    store = Contract().store
    assert isinstance(store, SQLiteStore)
    assert store.path == tmp_path / "here.db"
    assert isinstance(Contract("memory://").store, MemoryStore)


def test_a_store_is_taken_as_it_is() -> None:
    store = MemoryStore()
    assert Contract(store).store is store
    assert open_store(store) is store


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mysql://u:secret@host/db", "knows redis://"),
        ("localhost:6379", "names no store"),
        ("sqlite://host/x.db", "sqlite:///relative"),
        ("sqlite:///:memory:", "memory://"),
        (7, "URL or a Store"),
    ],
)
def test_a_store_that_cannot_be_says_what_can(url: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:s3cret@host:26379",
        "redis//:s3cret@host/0",
        "s3cret",
        "s3cret:x@host",
        "mysql://u:s3cret@host",
        "redis://:s3cret#x@host/0",
        "redis://u:s3cret/x@host:6379/0",
        "redis://u:12/s3cret@host:6379/0",
        "redis://u:x?s3cret@host:6379/0",
        "redis://:x@[s3cret/0",
        "redis://:x@host?s3cret=1",
        "redis://:s3cret@host?ssl_ca_certs=x",
        "redis://:s3cret@a,:s3cret@b",
        "redis+cluster://:s3cret@host:a/0",
        "redis+sentinel://:s3cret/x@host/mymaster",
        "postgresql://u:s3cr%et@host/db",
        "postgresql://u:p@s3cret@host/db",
        "postgresql://u:p/s3cret@host/db",
        "postgresql://u:p#s3cret@host/db",
        "postgresql://u:p@host/db?s3cret",
        "sqlite://u:s3cret@host/x",
        "sqlite:s3cret",
    ],
)
def test_no_part_of_a_url_is_told(url: str) -> None:  # C3: any part of it may be the password
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert "s3cr" not in str(caught.value)
    # Nor in what a log would print above it.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("url", ["sqlite:x.db", "sqlite:/x.db", "sqlite://x.db", "sqlite://", "sqlite:///", "sqlite:"])
def test_a_file_is_named_in_one_of_two_forms(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///relative\.db or sqlite:////absolute/path\.db"):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["sqlite:///a?b.db", "sqlite:///a#b.db", "sqlite:///a%00b.db", "sqlite:///x.db?mode=ro"]
)
def test_what_a_path_cannot_have_in_a_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="%3F"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///x.db", "x.db"),
        ("sqlite:///a/x.db", "a/x.db"),
        ("sqlite:////a/x.db", "/a/x.db"),
        ("sqlite:////a%20b/%3F%23%25.db", "/a b/?#%.db"),
        ("sqlite:////a b/ü.db", "/a b/ü.db"),
    ],
)
def test_a_file_is_where_its_url_says(url: str, path: str) -> None:
    store = open_store(url)
    assert isinstance(store, SQLiteStore)
    assert str(store.path) == path


@pytest.mark.parametrize("path", ["/state#1/50%25off/a?b.db", "rel/a b.db", "/caf\udce9.db", "/ü&=+.db"], ids=ascii)
def test_any_path_has_a_url(path: str) -> None:
    store = open_store(sqlite_url(path))
    assert isinstance(store, SQLiteStore)
    assert str(store.path) == path


def test_check_finds_a_store_that_is_not_there() -> None:  # A18: whatever its findings say
    class Away(MemoryStore):
        scope = "fleet"

        def ping(self) -> None:
            raise StoreUnavailable("the store did not answer ping: connection refused")

    [finding] = Contract(Away()).check()
    assert (finding.severity, "connection refused" in finding.what) == ("error", True)


def test_a_page_has_room_for_a_letter() -> None:  # E4
    for limit in (0, -1):
        with pytest.raises(ValueError, match="limit"):
            Contract("memory://").dead_letters.page(limit=limit)


def test_the_public_names_are_all_there() -> None:  # DESIGN 2
    names = "Contract Policy Backoff Envelope current_envelope current_run RetryableError NonRetryableError "
    names += "AlreadyEnqueued PayloadMismatch ContractError DeadLetter open_store"
    assert set(names.split()) <= set(task_contract.__all__)


@pytest.mark.parametrize(
    "error",
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ContractError)],
)
def test_every_exception_survives_pickling(error: type[ContractError]) -> None:  # STYLE: picklable
    made = error("what to do next")
    made.__dict__["existing_id"] = "m1"
    copy = pickle.loads(pickle.dumps(made))
    assert (type(copy), str(copy), copy.__dict__) == (error, "what to do next", made.__dict__)


def test_replay_needs_something_to_publish_with() -> None:  # E4
    contract = Contract("memory://")
    contract.store.put_letter(DeadLetter("l1", "invalid", b"{}"), keep=60)
    with pytest.raises(ContractError, match="publish"):
        contract.dead_letters.replay("l1")
    letter = contract.dead_letters.get("l1")
    assert letter is not None
    assert letter.state == "open"


def test_replay_publishes_then_marks(caplog: pytest.LogCaptureFixture) -> None:  # E4 D7
    contract = Contract("memory://")
    contract.store.put_letter(DeadLetter("l1", "invalid", b"{}"), keep=60)
    published: list[DeadLetter] = []
    contract.publisher = published.append
    contract.dead_letters.replay("l1", by="ann", reason="fixed")
    letter = contract.dead_letters.get("l1")
    assert letter is not None
    assert (letter.state, letter.closed_by, letter.closed_reason) == ("replayed", "ann", "fixed")
    assert [found.id for found in published] == ["l1"]


def test_a_replay_that_cannot_be_published_stays_open() -> None:  # E4: never lost
    contract = Contract("memory://")
    contract.store.put_letter(DeadLetter("l1", "invalid", b"{}"), keep=60)

    def refuse(letter: DeadLetter) -> None:
        raise ConnectionError("broker is away")

    contract.publisher = refuse
    with pytest.raises(ConnectionError):
        contract.dead_letters.replay("l1")
    assert contract.dead_letters.stats().depth == 1
    contract.publisher = lambda letter: None
    contract.dead_letters.replay("l1")
    assert contract.dead_letters.stats().depth == 0


def test_discard_is_terminal_and_kept() -> None:  # A12 E4
    contract = Contract("memory://")
    contract.store.put_letter(DeadLetter("l1", "invalid", b"{}"), keep=60)
    assert contract.dead_letters.discard("l1", reason="test order") is True
    assert contract.dead_letters.discard("l1") is False
    [letter] = contract.dead_letters.page(closed=True).letters
    assert (letter.state, letter.closed_reason, bool(letter.closed_by)) == ("discarded", "test order", True)


def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:  # D8
    contract = Contract("memory://")
    heard: list[str] = []

    def broken(event: Event) -> None:
        raise RuntimeError("no")

    contract.subscribe(broken)
    unsubscribe = contract.subscribe(lambda event: heard.append(event.name))
    contract.emit(Event("enqueued"))
    unsubscribe()
    contract.emit(Event("enqueued"))
    assert heard == ["enqueued"]


def test_a_log_line_has_the_fields_and_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:  # A16
    caplog.set_level(logging.DEBUG, "task_contract")
    write_log(Event("dead", message_id="m1", subject="x\ndead message_id=m2", attempt=3, status=429))
    [line] = caplog.records
    assert line.levelno == logging.ERROR
    assert "\n" not in line.getMessage()
    assert "attempt=3" in line.getMessage()
    assert line.contract["status"] == 429  # type: ignore[attr-defined]


def test_check_warns_of_records_that_expire_too_early() -> None:  # A15
    contract = Contract("memory://")
    contract.policies["charge"] = Policy(retain=60)
    texts = [finding.what for finding in contract.check() if finding.severity == "warning"]
    assert any("charge" in text and "retain" in text for text in texts)
    contract.policies["charge"] = Policy()
    assert [finding for finding in contract.check() if finding.severity == "warning"] == []
