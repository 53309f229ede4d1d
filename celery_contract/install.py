"""Attach a contract to a Celery app, and find the store that the app has already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from celery.app.registry import TaskRegistry

from celery_contract.attachment import Attachment, attachment_of, registry
from celery_contract.publisher import Publisher, republish
from celery_contract.task import adopt, release
from task_contract import Contract, Policy
from task_contract.stores.base import Store


def install(
    app: Celery,
    contract: Contract | None = None,
    *,
    store: str | Store | None = None,
    source: str | None = None,
    default: Policy | None = None,
    **settings: Any,
) -> Contract:
    """Cover every task of the app, those that exist and those to come. Again is harmless.

    Without a store the app's own Redis is used, its broker first, then its result backend.
    """
    known = attachment_of(app)
    if known is not None:
        known.everything = True
        _adopt_all(app)
        return known.contract
    contract = contract or Contract(store, source=source or app.main or None, default=default, **settings)
    return attach(app, contract, everything=True).contract


def attach(app: Celery, contract: Contract | None = None, *, everything: bool) -> Attachment:
    contract = contract or Contract(source=app.main or None)
    contract.find_store = lambda: find_store(app)
    contract.publisher = lambda letter: republish(app, letter)
    attachment = Attachment(contract, everything, send_task=app.send_task)
    app.__dict__["task_contract"] = attachment
    app.__dict__["send_task"] = Publisher(app, attachment)
    _watch_registry(app)
    _adopt_all(app)
    return attachment


def uninstall(app: Celery) -> None:
    """Take everything back, for tests."""
    if attachment_of(app) is None:
        return
    del app.__dict__["send_task"]
    app.__dict__.pop("task_contract").contract.close()
    registry(app).__class__ = TaskRegistry
    for task in registry(app).values():
        release(task)


class _Registry(TaskRegistry):  # type: ignore[misc]  # Celery has no types
    """Adopts tasks as they enter."""

    entered: Callable[[Any], None]

    def __setitem__(self, name: str, task: Any) -> None:
        self.entered(task)
        super().__setitem__(name, task)


def _watch_registry(app: Celery) -> None:
    tasks = registry(app)
    tasks.__class__ = _Registry
    tasks.entered = lambda task: _enter(app, task)


def _adopt_all(app: Celery) -> None:
    for task in list(registry(app).values()):
        _enter(app, task)


def _enter(app: Celery, task: Any) -> None:
    attachment = attachment_of(app)
    if attachment is not None and not str(task.name).startswith("celery."):
        adopt(task, attachment)


# --- the store that the app has already ------------------------------------------------------------------------------


def find_store(app: Celery) -> str | None:
    """Memory for an eager app; else the URL of its Redis: the broker's, else the result backend's."""
    conf = app.conf
    if conf.task_always_eager:
        return "memory://"
    for url in _urls(conf.broker_write_url or conf.broker_url, conf.result_backend):
        known = _as_store(url)
        if known:
            return known
    return None


def _urls(*values: Any) -> Iterable[str]:
    for value in values:
        several = value if isinstance(value, (list, tuple)) else str(value or "").split(";")
        yield from (url for url in several if url)


def _as_store(url: str) -> str | None:
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss"):
        return url
    if scheme == "redis+socket":
        path, _, query = url.removeprefix("redis+socket://").partition("?")
        return f"unix://{path}?{query.replace('virtual_host=', 'db=')}".rstrip("?")
    return None
