"""What is missing for the guarantees to hold, and how to mend it (A18)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from task_contract.errors import ContractError, StoreUnavailable
from task_contract.policy import Policy
from task_contract.settings import ttl_findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from task_contract.contract import Contract

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that weakens a guarantee."""

    severity: Severity
    what: str
    fix: str


def check(contract: Contract) -> list[Finding]:
    found = [*_store(contract), *_lifetimes(contract)]
    return sorted(found, key=lambda finding: finding.severity)


def _store(contract: Contract) -> Iterator[Finding]:
    store = contract.store
    if store.scope != "fleet":
        yield Finding(
            "error",
            f"the store is shared by this {store.scope} only: two hosts would run the same work twice",
            "give a store that all workers reach: redis://…, postgresql://…",
        )
    try:
        store.ping()
        for severity, what, fix in store.findings():
            yield Finding(severity, what, fix)
    except StoreUnavailable as error:
        yield Finding("error", f"the store does not answer: {error}", "start it, or correct its URL")
    except ContractError as error:
        yield Finding("error", f"the store cannot be used: {error}", "see what it says, or give another store")


def _lifetimes(contract: Contract) -> Iterator[Finding]:
    policies = contract.policies or {"(default)": contract.default or Policy()}
    for name, policy in policies.items():
        for sentence in ttl_findings(contract.settings, policy, longest_delay=contract.settings.max_delay):
            what, _, fix = sentence.rpartition(". ")
            yield Finding("warning", f"{name}: {what or sentence}", fix)
