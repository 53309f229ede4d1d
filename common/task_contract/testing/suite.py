"""All groups in one class."""

from __future__ import annotations

from task_contract.testing.claims import (
    ClaimMismatches,
    Claims,
    ClaimsOfFinishedWork,
    ClaimsOfWaitingWork,
    Exhaustion,
)
from task_contract.testing.endings import Burials, CompletedReplays, Completions, Forgotten, Retries
from task_contract.testing.heartbeats import Heartbeats, Progress
from task_contract.testing.letters import Discards, Letters, Statistics
from task_contract.testing.lifetimes import Expiry, Lifetimes
from task_contract.testing.pages import Filters, Pages
from task_contract.testing.replays import LooseReplays, Marks, RefusedReplays, Replays
from task_contract.testing.reservations import (
    Confirmations,
    Frees,
    Mismatches,
    Releases,
    ReservationLifetimes,
    Reservations,
    TakeOversOfReservations,
)
from task_contract.testing.slots import Slots
from task_contract.testing.suspects import Suspects, SuspectsWithSlots
from task_contract.testing.takeovers import Crashes, Interruptions, TakeOvers
from task_contract.testing.validity import Repetitions, Transitions
from task_contract.testing.values import HostileText, Results


class StoreConformance(
    Reservations,
    ReservationLifetimes,
    Confirmations,
    TakeOversOfReservations,
    Releases,
    Frees,
    Mismatches,
    Claims,
    ClaimsOfWaitingWork,
    ClaimsOfFinishedWork,
    ClaimMismatches,
    Exhaustion,
    TakeOvers,
    Crashes,
    Interruptions,
    Suspects,
    SuspectsWithSlots,
    Slots,
    Heartbeats,
    Progress,
    Completions,
    CompletedReplays,
    Retries,
    Burials,
    Forgotten,
    Transitions,
    Repetitions,
    Results,
    HostileText,
    Letters,
    Statistics,
    Discards,
    Pages,
    Filters,
    Replays,
    RefusedReplays,
    Marks,
    LooseReplays,
    Lifetimes,
    Expiry,
):
    """Every rule of the record protocol, one test each. Override the fixture `store`."""
