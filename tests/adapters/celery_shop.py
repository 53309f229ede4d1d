"""The Celery app that the adapter's tests run in worker processes: configured by the environment, marked in Redis."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from typing import Any

import redis
from celery import Celery

import celery_contract
from celery_contract import ContractTask
from task_contract import Policy, current_envelope, current_run

SETTINGS: dict[str, Any] = json.loads(os.environ["CELERY_SHOP"])
NAMESPACE = SETTINGS["namespace"]
ledger = redis.Redis.from_url(SETTINGS["redis"], decode_responses=True)

app = Celery("shop", set_as_current=False, broker=SETTINGS["broker"], backend=SETTINGS["redis"])
app.conf.update(
    task_default_queue=SETTINGS["queue"],
    broker_connection_retry_on_startup=True,
    broker_transport_options=SETTINGS["transport"],
    result_backend_transport_options={"global_keyprefix": f"{NAMESPACE}:"},
    worker_prefetch_multiplier=1,
)
contract = celery_contract.install(app, store=SETTINGS["redis"], namespace=NAMESPACE) if SETTINGS["install"] else None

#: Not shared: Celery would offer this app's tasks to every other app of the process.
task = partial(app.task, shared=False)
QUICK = {"initial": 0.1, "max": 0.5}


def mark(what: str) -> None:
    ledger.rpush(f"{NAMESPACE}:ledger", what)


def marks() -> list[str]:
    found = ledger.lrange(f"{NAMESPACE}:ledger", 0, -1)
    assert isinstance(found, list)
    return found


@task(contract=Policy(key="{order}:charge", subject="{order}", backoff=QUICK))
def charge(order: str, cents: int = 5) -> str:
    mark(f"charge {order}")
    return f"receipt {order}"


@task(contract=Policy(key="order", backoff=QUICK))
def flaky(order: str, failures: int) -> int:
    attempt = current_run().attempt
    mark(f"flaky {order} {attempt}")
    if attempt <= failures:
        raise ConnectionError("not yet")
    return attempt


@task(contract=Policy(key="order"))
def broken(order: str) -> None:
    mark(f"broken {order}")
    raise KeyError(order)


@task(contract=Policy(key="order", lease=1, crashes=2, backoff=QUICK))
def slow(order: str, seconds: float) -> str:
    mark(f"slow {order} {current_run().attempt} {os.getpid()}")
    time.sleep(seconds)
    mark(f"slept {order}")
    return f"slept {order}"


@task(contract=Policy(key="order", lease=1, crashes=2))
def poison(order: str) -> None:
    mark(f"poison {order}")
    os.kill(os.getpid(), signal.SIGKILL)


@task(base=ContractTask)
def swapped(text: str) -> dict[str, Any]:
    envelope = current_envelope()
    mark(f"swapped {text}")
    return {"text": text, "type": envelope.message_type, "correlation": envelope.correlation_id}


@task()
def watched(x: int, y: int) -> int:
    mark(f"watched {x} {y}")
    return x + y


@task()
def failing() -> None:
    mark("failing")
    raise ValueError("as ever")


@task(bind=True, max_retries=3, default_retry_delay=0)
def own_retries(self: Any, succeed_at: int) -> int:
    mark(f"own {self.request.retries}")
    if self.request.retries < succeed_at:
        raise self.retry(exc=ConnectionError("again"))
    return int(self.request.retries)


@task()
def parent() -> dict[str, Any]:
    envelope = current_envelope()
    child.delay()
    return {"correlation": envelope.correlation_id, "key": envelope.idempotency_key}


@task()
def child() -> None:
    envelope = current_envelope()
    mark(json.dumps({"correlation": envelope.correlation_id, "cause": envelope.causation_id}))
