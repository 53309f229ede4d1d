"""The demo: orders sent twice, a flaky bank, bugs, and workers killed with `kill -9`, on SQLite and on Redis.

    python -m examples.demo

Everything it starts is its own and ends with it; all files are in one temporary folder. The exit code is 0 only if
each promise was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from examples import shop
from examples.bank import RETRY_AFTER, Bank
from examples.processes import Crew, Stuck, redis_server
from examples.telling import Teller
from task_contract import DeadLetter
from task_contract.errors import InvalidTransition
from task_contract.keys import store_key
from task_contract.stores.base import Record

WORKERS = 3
ORDERS, TWICE, THRICE, REDELIVERED = 200, 30, 30, 40
FLAKY, OVERLOADED = 6, 6
NEIGHBOURS = 30


class Stage:
    """One run of the story on one store: the shop, its bank, its crew, and what can be seen from outside."""

    def __init__(self, folder: Path, tell: Teller, stack: ExitStack) -> None:
        self.tell = tell
        self.bank = Bank()
        stack.callback(self.bank.close)
        os.environ.update(SHOP_FOLDER=str(folder), SHOP_BANK=self.bank.url)
        self.set_rates(EUR=1.0, USD=0.9)
        self.contract, self.queue = shop.open_contract(), shop.open_queue()
        stack.callback(self.contract.close)
        stack.callback(self.queue.close)
        self.contract.publisher = lambda letter: self.queue.push(letter.message)
        self.accepted: set[tuple[str, str]] = set()
        self.replays = 0
        self._events, self._read = folder / "events.jsonl", 0
        self.events: list[dict[str, Any]] = []
        self.crew = Crew(WORKERS, folder / "log.txt")
        stack.callback(self.crew.stop)
        self.crew.tend()

    def set_rates(self, **rates: float) -> None:
        new = shop.folder() / "rates.json.new"
        new.write_text(json.dumps(rates))
        new.rename(shop.folder() / "rates.json")

    def send(self, task: str, order: str, *, cents: int = 500, copies: int = 1, **more: Any) -> str:
        """The message's id: a new one, or that of the message which is there already."""
        prepared = shop.send(self.contract, self.queue, task, copies=copies, order=order, cents=cents, **more)
        if prepared.duplicate is None:
            self.accepted.add((task, order))
        return prepared.message_id

    def see(self, name: str, **fields: object) -> list[dict[str, Any]]:
        """The events of this name so far, of all processes."""
        with self._events.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        self.events += map(json.loads, whole.splitlines())
        wanted = {"name": name, **fields}.items()
        return [event for event in self.events if wanted <= event.items()]

    def record(self, task: str, order: str) -> Record | None:
        return self.contract.store.get(store_key(task, f"{order}:{task}"))

    def known(self, task: str, order: str) -> Record:
        record = self.record(task, order)
        if record is None:
            raise Stuck(f"there is no record of {order}")
        return record

    def letters(self, subject: str = "") -> tuple[DeadLetter, ...]:
        return self.contract.dead_letters.page(subject=subject).letters

    def wait_until_quiet(self, what: str) -> None:
        self.wait_until(lambda: len(self.queue) == 0, f"{what}: every message is acknowledged")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        self.crew.wait_until(condition, what)

    def charged_once(self, orders: list[str]) -> bool:
        return all(self.bank.charges[order] == 1 for order in orders)


# --- the story -----------------------------------------------------------------------------------------------------


def duplicates(stage: Stage) -> None:
    """The same order sent up to three times by four impatient senders, and delivered twice by the queue itself."""
    tell = stage.tell
    tell.title("  1. Orders sent again and again")
    orders = [f"order-{number}" for number in range(1, ORDERS + 1)]
    again = orders[: TWICE + THRICE] + orders[:THRICE]
    sends = [(order, 2 if order in orders[-REDELIVERED:] else 1) for order in orders + again]
    random.Random(7).shuffle(sends)
    with ThreadPoolExecutor(4) as senders:
        ids = list(senders.map(lambda send: (send[0], stage.send("charge", send[0], copies=send[1])), sends))
    refused = len(stage.see("deduplicated"))
    tell.line(f"{len(sends)} sends of {ORDERS} orders: {len(stage.accepted)} accepted, {refused} known already")
    tell.promise("each repeated send was answered with the id of the first", len(set(ids)) == ORDERS)
    stage.wait_until_quiet("duplicates")
    repeated, deferred = len(stage.see("repeated")), len(stage.see("deferred"))
    tell.line(f"the queue delivered {REDELIVERED} of them twice: {repeated} copies got the stored result")
    if deferred:
        tell.line(f"{deferred} deliveries met the first one still running, and were told to come back")
    charges = sum(stage.bank.charges[order] for order in orders)
    tell.promise(f"{ORDERS} orders, {charges} charges: each exactly once", stage.charged_once(orders))


def flaky_work(stage: Stage) -> None:
    """A bank that hangs up, or says 503 and when to come back."""
    tell, bank = stage.tell, stage.bank
    tell.title("  2. A bank that is not always well")
    dropped = [f"dropped-{number}" for number in range(1, FLAKY + 1)]
    overloaded = [f"overloaded-{number}" for number in range(1, OVERLOADED + 1)]
    for order in dropped:
        bank.expect(order, ["drop", "drop"])
    for order in overloaded:
        bank.expect(order, ["busy"])
    for order in dropped + overloaded:
        stage.send("charge", order)
    stage.wait_until_quiet("flaky work")
    hung_up = [event["delay"] for event in stage.see("retried", status=None)]
    told_503 = stage.see("retried", status=503)
    gaps = [later - first for first, later, *_ in map(bank.calls, overloaded)]
    tell.line(f"{len(hung_up)} calls cut off: tried again after {min(hung_up):.2f} to {max(hung_up):.2f} s, jittered")
    tell.line(
        f"{len(told_503)} calls told 503, Retry-After: {RETRY_AFTER}: the soonest came back after {min(gaps):.2f} s"
    )
    tell.promise("nobody came back before Retry-After", min(gaps) >= RETRY_AFTER)
    tell.promise(f"all {FLAKY + OVERLOADED} charged in the end, once each", stage.charged_once(dropped + overloaded))


def broken_work(stage: Stage) -> None:
    """A bug, a bad order and a refused card: nothing that a retry would help."""
    tell = stage.tell
    tell.title("  3. Work that cannot succeed")
    stage.bank.expect("refused-1", ["decline"])
    stage.send("charge", "swiss-1", currency="CHF")
    stage.send("charge", "negative-1", cents=-5)
    stage.send("charge", "refused-1")
    stage.wait_until_quiet("broken work")
    letters = stage.letters()
    show(tell, letters)
    once = [letter.attempts for letter in letters] == [1, 1, 1]
    tell.promise("all three are dead letters, after one attempt each", once)
    swiss = next((letter for letter in letters if letter.subject == "swiss-1"), None)
    if swiss is not None:
        replay(stage, swiss)


def show(tell: Teller, letters: tuple[DeadLetter, ...]) -> None:
    head = ("dead letter", "error", "key", "attempts")
    tell.table([head, *((letter.reason, error(letter), letter.key, letter.attempts) for letter in letters)])


def error(letter: DeadLetter) -> str:
    kind = letter.error_type.rpartition(".")[2]
    return f"{kind}: {letter.error}" if kind else letter.error


def replay(stage: Stage, letter: DeadLetter) -> None:
    tell, dead_letters = stage.tell, stage.contract.dead_letters
    stage.set_rates(EUR=1.0, USD=0.9, CHF=1.05)
    dead_letters.replay(letter.id, by="demo", reason="the rate was missing")
    stage.replays += 1
    stage.wait_until_quiet("replay")
    tell.line("the rate for CHF is added, and the letter replayed:")
    record = stage.known("charge", letter.subject)
    replayed = record.state == "done" and record.message_id == letter.message_id
    tell.promise("it ran once more, under its own id, and was charged", replayed and stage.charged_once(["swiss-1"]))
    try:
        dead_letters.replay(letter.id, by="demo")
    except InvalidTransition as refusal:
        tell.promise(f"a second click is refused: it is {refusal.state} already", True)
    else:
        tell.promise("a second click on replay is refused", False)


def killed_worker(stage: Stage) -> None:
    """`kill -9` in the middle of a task."""
    tell = stage.tell
    tell.title("  4. kill -9 in the middle of a task")
    stage.bank.expect("slow-1", ["hold"])
    stage.send("invoice", "slow-1")
    stage.wait_until(lambda: bool(stage.bank.calls("slow-1")), "the slow order is under way")
    stage.wait_until(lambda: bool(stage.see("deferred", subject="slow-1")), "the queue delivers the slow order again")
    before = stage.known("invoice", "slow-1")
    victim = int(before.worker.rpartition(":")[2])
    tell.line(f"worker {victim} waits for the bank: attempt {before.attempts}, fence {before.fence}")
    tell.line("the queue lost patience and delivered it again; the heartbeat holds the lease, so the copy waits")
    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    tell.line(f"worker {victim} is killed; its lease of 1 s runs out")
    stage.wait_until(lambda: victim not in stage.crew.pids, "the killed worker is gone")
    stage.bank.expect("slow-1", [])
    stage.wait_until_quiet("killed worker")
    seconds = time.monotonic() - killed_at
    after = stage.known("invoice", "slow-1")
    heir = after.worker.rpartition(":")[2]
    tell.promise(
        f"worker {heir} took over and finished after {seconds:.1f} s: attempt {after.attempts}, fence {after.fence}",
        after.state == "done" and after.fence > before.fence and after.worker != before.worker,
    )
    tell.promise("charged once", stage.charged_once(["slow-1"]))


def poison(stage: Stage) -> None:
    """A message that takes its worker down, every time."""
    tell, killed_before = stage.tell, stage.crew.killed
    tell.title("  5. A message that kills its worker")
    stage.send("invoice", "poison-1", template="cursed")
    neighbours = [f"neighbour-{number}" for number in range(1, NEIGHBOURS + 1)]
    for order in neighbours:
        stage.send("charge", order)
    stage.wait_until_quiet("poison")
    stage.crew.tend()
    letters, killed = stage.letters(subject="poison-1"), stage.crew.killed - killed_before
    show(tell, letters)
    buried = [(letter.reason, letter.crashes) for letter in letters] == [("worker-killed", 3)]
    tell.promise(f"buried after {killed} dead workers", buried and killed == 3)
    tell.promise(f"its {NEIGHBOURS} neighbours all finished, once each", stage.charged_once(neighbours))


CHAPTERS = (duplicates, flaky_work, broken_work, killed_worker, poison)


# --- the reckoning -------------------------------------------------------------------------------------------------


def audit(stage: Stage) -> dict[str, int]:
    """Counted from the records, the bank and the events; not from what the story believes."""
    states = {work: record.state if (record := stage.record(*work)) else "gone" for work in stage.accepted}
    charges = stage.bank.charges
    done = {order for (_, order), state in states.items() if state == "done"}
    ended = Counter(states.values())
    return {
        "sends": len(stage.see("enqueued")) + len(stage.see("deduplicated")),
        "enqueued": len(stage.accepted),
        "deduplicated at the enqueue": len(stage.see("deduplicated")),
        "absorbed at the claim": len(stage.see("repeated")),
        "executed": len(stage.see("started")),
        "retried": len(stage.see("retried")),
        "dead": len(stage.see("dead")),
        "replayed": stage.replays,
        "killed workers": stage.crew.killed,
        "done in the end": ended["done"],
        "dead in the end": ended["dead"],
        "effects doubled": sum(count - 1 for count in charges.values()),
        "lost": len(stage.accepted) - ended["done"] - ended["dead"] + len(done - charges.keys()),
        "charged without being done": len(charges.keys() - done),
    }


def reckon(tell: Teller, results: dict[str, dict[str, int]], seconds: dict[str, float]) -> None:
    tell.title("Summary")
    rows = [(name, *(counts[name] for counts in results.values())) for name in next(iter(results.values()))]
    tell.table([("", *results), *rows, ("seconds", *(f"{spent:.1f}" for spent in seconds.values()))], numbers=True)
    print()
    for store, counts in results.items():
        kept = not (counts["lost"] or counts["effects doubled"] or counts["charged without being done"])
        tell.promise(f"{store}: every accepted order is done or a dead letter, and no order was charged twice", kept)


# --- running it ----------------------------------------------------------------------------------------------------


def perform(store: str, url: str, folder: Path, tell: Teller) -> dict[str, int]:
    folder.mkdir()
    os.environ["SHOP_STORE"] = url
    try:
        with ExitStack() as stack:
            stage = Stage(folder, tell, stack)
            tell.title(f"{store}: {WORKERS} workers, pids {', '.join(map(str, stage.crew.pids))}")
            for chapter in CHAPTERS:
                chapter(stage)
            return audit(stage)
    except Stuck as reason:
        log = (folder / "log.txt").read_text(errors="replace").splitlines()
        tell.failure("\n".join(["the end of the log:", *log[-20:], "", f"{store}: {reason}"]))
        raise


@contextmanager
def stores(wanted: str, redis_url: str, folder: Path) -> Iterator[dict[str, str]]:
    """Names and addresses."""
    found = {"SQLite": f"sqlite:///{folder / 'records.db'}"} if wanted != "redis" else {}
    if wanted == "sqlite":
        yield found
        return
    with redis_server(folder, os.environ["SHOP_NAMESPACE"], redis_url) as server:
        print(f"Redis: {server.origin if server else 'none runs here, and there is no redis-server to start'}")
        yield {**found, "Redis": server.url} if server else found


def run(tell: Teller, options: argparse.Namespace, folder: Path) -> None:
    results: dict[str, dict[str, int]] = {}
    seconds: dict[str, float] = {}
    print("task-contract: a shop, a queue that delivers at least once, and a bank that charges as often as it is asked")
    with stores(options.store, options.redis, folder) as found:
        for store, url in found.items():
            started = time.monotonic()
            results[store] = perform(store, url, folder / store.lower(), tell)
            seconds[store] = time.monotonic() - started
    if not results:
        raise Stuck("no store to tell the story on")
    reckon(tell, results, seconds)


def set_up() -> None:
    """The demo's own settings and nobody else's; and a way out that leaves nothing behind."""
    for name in [name for name in os.environ if name.startswith("TASK_CONTRACT_")]:
        del os.environ[name]
    os.environ["SHOP_NAMESPACE"] = f"demo-{secrets.token_hex(4)}"
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def leave(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001  (a handler's signature)
        for number in signals:  # a second Ctrl-C would only interrupt the cleaning
            signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + signum)

    for number in signals:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup has its way
            signal.signal(number, leave)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=["both", "sqlite", "redis"], default="both")
    parser.add_argument("--redis", metavar="URL", default="", help="use this Redis, under a namespace of its own")
    options = parser.parse_args()
    set_up()
    tell = Teller()
    try:
        with tempfile.TemporaryDirectory(prefix="task-contract-demo-") as folder:
            run(tell, options, Path(folder))
    except Stuck as reason:
        tell.broken.append(str(reason))
    except BrokenPipeError:  # nobody listens any more, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if tell.broken:
        tell.failure("\n".join(["Broken promises:", *tell.broken]))
    return 1 if tell.broken else 0


if __name__ == "__main__":
    sys.exit(main())
