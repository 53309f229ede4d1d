"""One worker of the demo's shop: a process that takes messages until it is told to stop, or killed."""

from __future__ import annotations

import logging
import os
import signal
import time
from types import FrameType

from examples.shop import open_contract, open_queue, work
from task_contract.errors import StoreUnavailable

IDLE_SECONDS = 0.01

log = logging.getLogger(__name__)


class Stop:
    """Set by SIGTERM; also if the demo itself is gone, so that no worker outlives it."""

    def __init__(self) -> None:
        self._asked, self._parent = False, os.getppid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the demo's to handle
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002  (a handler's signature)
        self._asked = True

    def __bool__(self) -> bool:
        return self._asked or os.getppid() != self._parent


def main() -> None:
    stop, contract, queue = Stop(), open_contract(), open_queue()
    while not stop:
        delivery = queue.take()
        if delivery is None:
            time.sleep(IDLE_SECONDS)
            continue
        try:
            work(contract, queue, delivery)
        except StoreUnavailable:
            log.exception("the store is away; the message stays with the queue")
    contract.close()
    queue.close()


if __name__ == "__main__":
    main()
