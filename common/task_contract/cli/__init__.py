"""`task-contract`: what is in a store, from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from task_contract.contract import Contract
from task_contract.errors import ContractError
from task_contract.keys import store_key
from task_contract.stores.base import DeadLetter

as_json = click.option("--json", "json_", is_flag=True, help="For programs: one JSON document.")


@click.group()
@click.option("--store", envvar="TASK_CONTRACT_STORE", help="redis://…, postgresql://…, sqlite:///path")
@click.option("--namespace", envvar="TASK_CONTRACT_NAMESPACE", help="The contract's key prefix.")
@click.version_option(package_name="task-contract")
@click.pass_context
def main(ctx: click.Context, store: str | None, namespace: str | None) -> None:
    """Look at the records and dead letters of a task contract."""
    with _explained():
        ctx.obj = Contract(store, namespace=namespace)


@main.command()
@click.argument("message_type")
@click.argument("key")
@as_json
@click.pass_obj
def inspect(contract: Contract, message_type: str, key: str, json_: bool) -> None:
    """The record of one idempotency KEY."""
    with _explained():
        record = contract.store.get(store_key(message_type, key))
    if record is None:
        raise click.ClickException(f"no record of {message_type} {key}: it never ran, or its record has expired")
    _print(asdict(record), json_)


@main.command()
@as_json
@click.pass_obj
def check(contract: Contract, json_: bool) -> None:
    """Audit the store and the settings; exit code 1 if something is wrong."""
    with _explained():
        findings = contract.check()
    if json_:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    for finding in [] if json_ else findings:
        what, fix = (_printable(" ".join(text.split())) for text in (finding.what, finding.fix))
        click.echo(f"{finding.severity}: {what}\n  fix: {fix}")
    if any(finding.severity == "error" for finding in findings):
        raise SystemExit(1)


@main.group()
def dlq() -> None:
    """The dead letters."""


@dlq.command("list")
@click.option("--type", "message_type", default="")
@click.option("--queue", default="")
@click.option("--error", "error_type", default="")
@click.option("--group", default="")
@click.option("--reason", default="")
@click.option("--correlation", "correlation_id", default="")
@click.option("--subject", default="")
@click.option("--closed", is_flag=True, help="Those that were replayed, discarded or superseded.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@click.option("--cursor", default="", help="Where the page before ended.")
@as_json
@click.pass_obj
def list_(contract: Contract, /, json_: bool, **filters: Any) -> None:
    """Newest first."""
    with _explained():
        page = contract.dead_letters.page(**filters)
    if json_:
        _print({"letters": [_plain(letter) for letter in page.letters], "cursor": page.cursor}, json_)
        return
    for letter in page.letters:
        click.echo(_line(letter))
    if page.cursor:
        click.echo(_printable(f"more: --cursor {page.cursor}"))


@dlq.command()
@click.argument("letter_id")
@as_json
@click.pass_obj
def show(contract: Contract, letter_id: str, json_: bool) -> None:
    """Everything about one dead letter."""
    with _explained():
        letter = contract.dead_letters.get(letter_id)
    if letter is None:
        raise click.ClickException(f"no dead letter {letter_id}; `task-contract dlq list` shows those there are")
    _print(_plain(letter), json_)


@dlq.command()
@click.argument("letter_id")
@click.option("--reason", required=True, help="Why it needs no replay; kept with the letter.")
@click.pass_obj
def discard(contract: Contract, letter_id: str, reason: str) -> None:
    """Mark a dead letter terminal; it stays readable until its retention ends."""
    with _explained():
        fresh = contract.dead_letters.discard(letter_id, reason=reason)
    click.echo("discarded" if fresh else "was discarded before")


@dlq.command()
@as_json
@click.pass_obj
def stats(contract: Contract, json_: bool) -> None:
    """Depth, the oldest, and how many of each reason."""
    with _explained():
        found = contract.dead_letters.stats()
    _print({"depth": found.depth, "oldest_at": found.oldest_at, "reasons": dict(found.reasons)}, json_)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (ContractError, ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from error


def _line(letter: DeadLetter) -> str:
    when = letter.failed_at.isoformat(timespec="seconds") if letter.failed_at else ""
    parts = (letter.reason, letter.message_type, letter.key, letter.error_type, letter.error)
    what = "  ".join(part for part in parts if part)[:200]
    return _printable(f"{letter.id}  {when}  {what}")


def _plain(letter: DeadLetter) -> dict[str, Any]:
    return {**asdict(letter), "message": letter.message.decode("utf-8", "backslashreplace")}


def _print(values: dict[str, Any], json_: bool) -> None:
    if json_:
        click.echo(json.dumps(values, default=_spelled))
        return
    for name, value in values.items():
        if value not in (None, "", b"", {}):
            click.echo(f"{name}: {_block(value) if name == 'traceback' else _printable(_spelled(value))}")


def _spelled(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _block(text: str) -> str:
    """Lines below their name, so that none of them can pass for another field."""
    return "".join(f"\n  {_printable(line)}" for line in text.rstrip("\n").split("\n"))


def _printable(text: str) -> str:
    """One line: what a message says must neither steer the terminal it is shown on nor forge a row."""
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return "\\n" if character == "\n" else f"\\x{ord(character):02x}"
