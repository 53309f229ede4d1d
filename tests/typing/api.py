"""The public API as user code: never run, only read by a type checker.

A line that must be an error carries an ignore with its code; a strict mypy reports an ignore that is not needed.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

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
from task_contract.running import Message
from task_contract.sending import Call, confirm, prepare

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


@contract.on_dead_letter
def page_somebody(letter: DeadLetter) -> None:
    show(letter.reason, letter.failed_at, letter.message)


def in_a_consumer(envelope: Envelope) -> float | None:
    handled = contract.handle(Message(envelope, "id", (1,), {"cents": 5}), in_a_task, policy)
    if handled.verdict.action in ("retry", "defer"):
        return handled.verdict.delay
    return None


def in_a_sender() -> str:
    with contract.context(correlation_id="job-7"):
        prepared = prepare(contract, Call("charge", policy, in_a_task, (1,)))
    if prepared.duplicate is None:
        confirm(contract, prepared)
    return prepared.message_id


def at_the_desk() -> None:
    page = contract.dead_letters.page(limit=10, reason="exhausted", since=datetime.now(timezone.utc))
    for letter in page.letters:
        contract.dead_letters.replay(letter.id, by="ann", reason="fixed")
    stats = contract.dead_letters.stats()
    show(stats.depth, stats.oldest_at, [finding.fix for finding in contract.check()])


def in_a_long_task() -> None:
    run = current_run()
    run.progress(40, "half of it")
    show(run.attempt, run.fence, run.deadline, run.lost)
