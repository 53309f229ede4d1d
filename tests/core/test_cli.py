"""The command: what is in a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from task_contract import Contract, Policy
from task_contract.cli import main
from task_contract.running import Message
from task_contract.sending import Call, prepare

POLICY = Policy(key="order")


def charge(order: int) -> None:
    raise ValueError("\x1b[31mbug\n0123456789ab  2026-01-01T00:00:00+00:00  forged row\nstate: forged")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def letter_id(url: str) -> str:
    contract = Contract(url)
    prepared = prepare(contract, Call("charge", POLICY, charge, (7,)))
    return contract.handle(Message(prepared.envelope, prepared.message_id, (7,)), charge, POLICY).letter_id


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["--store", url, *words])


def test_list_show_and_stats(url: str, letter_id: str) -> None:  # E4 D10
    listed = run(url, "dlq", "list")
    assert (listed.exit_code, letter_id in listed.output, "non-retryable" in listed.output) == (0, True, True)
    shown = json.loads(run(url, "dlq", "show", letter_id, "--json").output)
    assert (shown["key"], shown["attempts"], shown["error_type"]) == ("7", 1, "ValueError")
    assert "depth: 1" in run(url, "dlq", "stats").output
    assert json.loads(run(url, "dlq", "list", "--type", "other", "--json").output)["letters"] == []
    (letter,) = json.loads(run(url, "dlq", "list", "--json").output)["letters"]
    assert (letter["id"], letter["failed_at"]) == (letter_id, shown["failed_at"])


def test_hostile_content_does_not_steer_the_terminal(url: str, letter_id: str) -> None:  # DESIGN 9
    for words in (("dlq", "list"), ("dlq", "show", letter_id)):
        assert "\x1b" not in run(url, *words).output


def test_hostile_content_forges_no_row_and_no_field(url: str, letter_id: str) -> None:  # DESIGN 9
    (line,) = run(url, "dlq", "list").output.splitlines()
    assert line.startswith(letter_id)
    shown = run(url, "dlq", "show", letter_id).output.splitlines()
    assert [line for line in shown if line.startswith("state:")] == ["state: open"]
    assert sum(line.startswith("  ") for line in shown) > 3  # the traceback, line by line
    inspected = run(url, "inspect", "charge", "7").output.splitlines()
    assert [line for line in inspected if line.startswith("state:")] == ["state: dead"]


def test_discard_keeps_who_and_why(url: str, letter_id: str) -> None:  # E4
    assert run(url, "dlq", "discard", letter_id).exit_code == 2
    assert "discarded" in run(url, "dlq", "discard", letter_id, "--reason", "a test").output
    assert "before" in run(url, "dlq", "discard", letter_id, "--reason", "a test").output
    assert "depth: 0" in run(url, "dlq", "stats").output


def test_inspect_shows_the_record(url: str, letter_id: str) -> None:  # A7
    shown = run(url, "inspect", "charge", "7")
    assert (shown.exit_code, "state: dead" in shown.output) == (0, True)
    missing = run(url, "inspect", "charge", "8")
    assert (missing.exit_code, "never ran" in missing.output) == (1, True)


def test_check_fails_on_an_error(url: str) -> None:  # A18
    checked = run(url, "check")
    assert (checked.exit_code, "fix:" in checked.output) == (1, True)
    assert json.loads(run(url, "check", "--json").output)[0]["severity"] == "error"


@pytest.mark.parametrize(
    "store", ["redis://127.0.0.1:1/0", "postgresql://postgres@127.0.0.1:1/x", "sqlite:////proc/x/y"]
)
def test_check_fails_if_the_store_is_not_there(store: str) -> None:  # A18
    checked = run(store, "check")
    assert (checked.exit_code, "error: the store" in checked.output) == (1, True)
    assert "error" in [finding["severity"] for finding in json.loads(run(store, "check", "--json").output)]


@pytest.mark.parametrize(
    "store",
    [
        "redis//:s3cret@host/0",
        "redis://:s3cret#x@host/0",
        "redis://u:s3cret/x@host:6379/0",
        "redis+cluster://:s3cret@host:a/0",
        "redis://:x@host?s3cret=1",
        "postgresql://u:s3cr%et@host/db",
        "postgresql://u:s3cret/x@host/db",
        "sqlite://u:s3cret@host/x",
    ],
)
def test_no_mistake_in_a_url_shows_its_password(store: str) -> None:  # C3: what is printed ends up in logs
    result = run(store, "check")
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert "s3cr" not in result.output


@pytest.mark.parametrize(
    ("store", "words", "text"),
    [
        ("mysql://x", ("dlq", "stats"), "knows redis://"),
        ("redis://127.0.0.1:1", ("dlq", "stats"), "did not answer"),
        ("memory://", ("dlq", "show", "nope"), "no dead letter nope"),
        ("memory://", ("dlq", "discard", "nope", "--reason", "x"), "no such dead letter"),
        ("memory://", ("dlq", "list", "--cursor", "x"), "not a page cursor"),
        ("sqlite:x.db", ("dlq", "stats"), "sqlite:///relative.db"),
    ],
)
def test_mistakes_get_a_sentence(store: str, words: tuple[str, ...], text: str) -> None:
    result = run(store, *words)
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert text in result.output
