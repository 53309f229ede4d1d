"""What is attached to an app, and what a task is to it: steered by a policy, watched, or neither."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from celery import Celery

from task_contract import Contract, Policy

#: A watched task keeps its own retries: only crashes are bounded.
WATCHED = Policy(attempts=2**31 - 1, on_mismatch="reuse")
STEERED = Policy()


@dataclass
class Attachment:
    contract: Contract
    #: Whether all tasks are covered, or only those whose base is ContractTask.
    everything: bool
    #: The app's own, from before.
    send_task: Callable[..., Any]


class Terms(NamedTuple):
    """What holds for one task."""

    contract: Contract
    policy: Policy
    steered: bool


def attachment_of(app: Celery) -> Attachment | None:
    return cast("Attachment | None", app.__dict__.get("task_contract"))


def registry(app: Celery) -> Any:
    """The tasks, without finalizing the app as `app.tasks` does."""
    return app._tasks  # noqa: SLF001  (there is no public way that leaves the app alone)


def terms_of(attachment: Attachment, task: Any) -> Terms | None:
    """None for a task that the contract does not cover."""
    contract = attachment.contract
    policy = getattr(task, "contract", None)
    if isinstance(policy, Policy):
        return Terms(contract, policy, steered=True)
    if contract.default is not None:
        return Terms(contract, contract.default, steered=True)
    if getattr(task, "steered", False):
        return Terms(contract, STEERED, steered=True)
    return Terms(contract, WATCHED, steered=False) if attachment.everything else None
