"""The shop: its tasks with their policies, and how messages get onto the queue and off it again.

With Celery or Dramatiq the adapters do what is below the tasks. Here one sees all of it: prepare → push → confirm on
one side, take → handle → ack or put back on the other.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from examples.tiny_queue import Delivery, TinyQueue
from task_contract import Backoff, Contract, Envelope, Policy, current_envelope, current_run
from task_contract.events import Event
from task_contract.running import Handled, Message
from task_contract.sending import Call, Prepared, confirm, prepare

# --- the tasks -----------------------------------------------------------------------------------------------------


def charge(order: str, cents: int, currency: str = "EUR") -> dict[str, Any]:
    """Charge an order, in euros."""
    if cents <= 0:
        raise ValueError(f"an order of {cents} cents")
    rates = json.loads((folder() / "rates.json").read_text())
    return _pay(order, round(cents * rates[currency]))


def invoice(order: str, cents: int, template: str = "plain") -> dict[str, Any]:
    """Render an invoice, then charge it. The renderer is native code, and cannot take every template."""
    current_run().progress(50, "rendering")
    if template == "cursed":
        os.kill(os.getpid(), signal.SIGKILL)  # as a segmentation fault or the kernel's OOM killer would
    return _pay(order, cents)


def _pay(order: str, cents: int) -> dict[str, Any]:
    # A real bank would know a repeated call by this key; this one does not look at it, so that a double would show.
    headers = {"Idempotency-Key": current_envelope().idempotency_key, "Content-Type": "application/json"}
    body = json.dumps({"order": order, "cents": cents}).encode()
    request = urllib.request.Request(os.environ["SHOP_BANK"], data=body, headers=headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=30) as answer:
        receipt: dict[str, Any] = json.load(answer)
    return {**receipt, "order": order, "cents": cents}


class Task(NamedTuple):
    fn: Callable[..., Any]
    policy: Policy


SOON = Backoff(initial=0.1, max=1)
TASKS = {
    "charge": Task(charge, Policy(key="{order}:charge", subject="{order}", lease=5, backoff=SOON)),
    "invoice": Task(invoice, Policy(key="{order}:invoice", subject="{order}", lease=1, crashes=3, backoff=SOON)),
}


# --- producer and worker -------------------------------------------------------------------------------------------


def send(contract: Contract, queue: TinyQueue, task: str, copies: int = 1, **arguments: Any) -> Prepared:
    """Enqueue, unless it is enqueued already. More than one copy is the queue's mistake, not the sender's."""
    fn, policy = TASKS[task]
    prepared = prepare(contract, Call(task, policy, fn, kwargs=arguments))
    if prepared.duplicate is None:
        message = Message(prepared.envelope, prepared.message_id, kwargs=arguments)
        for _ in range(copies):
            queue.push(message.body())
        confirm(contract, prepared)
    return prepared


def work(contract: Contract, queue: TinyQueue, delivery: Delivery) -> Handled:
    """Run what was delivered, if it is to run, and tell the queue the verdict."""
    message = read(delivery.body)
    fn, policy = TASKS[message.envelope.message_type]
    handled = contract.handle(message, fn, policy, patience=5)
    verdict = handled.verdict
    if verdict.action in ("done", "dead"):
        queue.ack(delivery)
    elif verdict.action == "retry":
        queue.put_back(delivery, verdict.delay)
    else:  # another worker has it: ask again, less and less often
        queue.put_back(delivery, min(verdict.delay, 0.05 * 2 ** min(delivery.deliveries, 10)))
    return handled


def read(body: bytes) -> Message:
    parts = json.loads(body)
    kwargs = parts["kwargs"]
    envelope = Envelope.from_wire(parts["contract"], payload={"args": parts["args"], "kwargs": kwargs})
    return Message(envelope, parts["id"], tuple(parts["args"]), kwargs, queue="orders", raw=body)


# --- what producer, workers and operator share ---------------------------------------------------------------------


def folder() -> Path:
    return Path(os.environ["SHOP_FOLDER"])


def open_queue() -> TinyQueue:
    return TinyQueue(folder() / "queue.db")


def open_contract() -> Contract:
    """The contract over the store of this run; all that happens is appended to one file of events."""
    logging.basicConfig(
        filename=folder() / "log.txt", level=logging.INFO, format="%(process)d %(levelname)s %(message)s", force=True
    )
    contract = Contract(
        os.environ["SHOP_STORE"], namespace=os.environ["SHOP_NAMESPACE"], source="shop", store_timeout=5
    )
    events = os.open(folder() / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(event: Event) -> None:
        # One write of one line: what several processes append does not mix.
        os.write(events, json.dumps(asdict(event)).encode() + b"\n")

    contract.subscribe(write)
    return contract
