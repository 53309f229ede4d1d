"""A reliability layer for task queues: envelope, idempotency, classified retries, dead letters.

The adapters for Celery and Dramatiq are `celery_contract` and `dramatiq_contract`.
"""

from task_contract.contract import Contract
from task_contract.envelope import Envelope, current_envelope
from task_contract.errors import (
    AlreadyEnqueued,
    ContractError,
    NonRetryableError,
    PayloadMismatch,
    RetryableError,
)
from task_contract.policy import Backoff, Policy
from task_contract.runs import current_run
from task_contract.stores import open_store
from task_contract.stores.base import DeadLetter

__all__ = [
    "AlreadyEnqueued",
    "Backoff",
    "Contract",
    "ContractError",
    "DeadLetter",
    "Envelope",
    "NonRetryableError",
    "PayloadMismatch",
    "Policy",
    "RetryableError",
    "current_envelope",
    "current_run",
    "open_store",
]
