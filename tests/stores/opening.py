"""Where a test's store is, in a form that another process can be handed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from task_contract.stores import open_store
from task_contract.stores.base import Store


@dataclass(frozen=True)
class Address:
    """A store's URL, and the prefix or schema that is this test's own."""

    kind: str
    url: str
    name: str = ""

    def open(self) -> Store:
        return open_store(self.url, namespace=self.name or "task-contract")

    @contextmanager
    def opened(self) -> Iterator[Store]:
        store = self.open()
        try:
            yield store
        finally:
            store.close()

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Address:
        return cls(**json.loads(text))
