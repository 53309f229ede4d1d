"""The public API as user code: never run, only read by a type checker.

A line that must be an error carries an ignore with its code; a strict mypy reports an ignore that is not needed.
"""

from __future__ import annotations

from datetime import timedelta

from task_contract import (
    AlreadyEnqueued,
    Backoff,
    Contract,
    ContractError,
    DeadLetter,
    Envelope,
    NonRetryableError,
    PayloadMismatch,
    Policy,
    RetryableError,
    current_envelope,
    current_run,
    open_store,
)

contract: Contract = Contract("memory://", source="shop")
policy: Policy = Policy(key="{customer_id}:{invoice_id}", subject="{invoice_id}", retain=timedelta(hours=1), lease=30)
patient: Policy = Policy(backoff=Backoff(kind="exponential", initial=5, max=300, jitter="full"), attempts=3)
chosen: Policy = Policy(key=lambda order_id: f"order-{order_id}", retry_on=(OSError,), dead_on=(ValueError,))
store = open_store("memory://")

Policy(on_duplicate="shrug")  # type: ignore[arg-type]
Backoff(kind="linear")  # type: ignore[arg-type]


def show(*values: object) -> None: ...


def in_a_task() -> None:
    envelope: Envelope | None = current_envelope()
    show(envelope, current_run())
    raise RetryableError("busy", retry_after=timedelta(seconds=5))


def hopeless() -> None:
    raise NonRetryableError("no such customer")


def in_a_producer() -> str | None:
    try:
        in_a_task()
    except AlreadyEnqueued as duplicate:
        return duplicate.existing_id
    except PayloadMismatch as mismatch:
        return str(mismatch)
    except ContractError as error:
        return str(error)
    return None


def on_dead_letter(letter: DeadLetter) -> None:
    show(letter)
