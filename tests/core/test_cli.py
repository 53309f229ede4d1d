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
    raise KeyError("\x1b[31mbug")


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
    assert (shown["key"], shown["attempts"], shown["error_type"]) == ("7", 1, "KeyError")
    assert "depth: 1" in run(url, "dlq", "stats").output
    assert json.loads(run(url, "dlq", "list", "--type", "other", "--json").output)["letters"] == []


def test_hostile_content_does_not_steer_the_terminal(url: str, letter_id: str) -> None:  # DESIGN 9
    for words in (("dlq", "list"), ("dlq", "show", letter_id)):
        assert "\x1b" not in run(url, *words).output


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
    ("store", "words", "text"),
    [
        ("mysql://x", ("dlq", "stats"), "knows redis://"),
        ("redis://127.0.0.1:1", ("dlq", "stats"), "did not answer"),
        ("memory://", ("dlq", "show", "nope"), "no dead letter nope"),
        ("memory://", ("dlq", "discard", "nope", "--reason", "x"), "no such dead letter"),
        ("memory://", ("dlq", "list", "--cursor", "x"), "not a page cursor"),
    ],
)
def test_mistakes_get_a_sentence(store: str, words: tuple[str, ...], text: str) -> None:
    result = run(store, *words)
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert text in result.output
