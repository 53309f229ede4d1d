"""The envelope around each message (A1), its upgrades (A2), and what a message inherits from the work that sent it."""

from __future__ import annotations

import copy
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Annotated, Any, NamedTuple, TypeVar, overload
from uuid import uuid4

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from task_contract.errors import ConfigurationError, ContractError, EnvelopeError, SchemaTooNew
from task_contract.peek import message_of

WIRE_VERSION = 1
"""The version of the wire form itself; `schema_version` is the version of one message type's payload."""

T = TypeVar("T")
Payload = dict[str, Any]
Upgrade = Callable[[Payload], Payload]
UpgradeT = TypeVar("UpgradeT", bound=Upgrade)

_NO_CONTROL = r"^[^\p{Cc}\p{Zl}\p{Zp}]+$"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.{0,200})?")


def _iso(value: object) -> object:
    # pydantic would also read 1700000000 and "1700000000" as moments; a contract has one spelling.
    if isinstance(value, datetime) or (isinstance(value, str) and "T" in value):
        return value
    raise ValueError("an ISO 8601 time is needed")


def _utc(value: datetime) -> datetime:
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:  # the first or last hours of the calendar; pydantic only collects a ValueError
        raise ValueError("out of range") from None


def _traceparent(value: object) -> str | None:
    # A broken trace is a pity, a message refused for it would be a loss.
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


Id = Annotated[str, Field(max_length=255, pattern=_NO_CONTROL)]
_Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_iso), AfterValidator(_utc)]

_RULES = {
    "schema_version": "should be an int of at least 1",
    "message_type": "should be a name such as 'file.process.request': 1 to 200 characters without spaces",
    "correlation_id": "should be a text of 1 to 255 characters without control characters",
    "causation_id": "should be a text of 1 to 255 characters without control characters",
    "idempotency_key": "should be a text of 1 to 255 characters without control characters",
    "subject": "should be a text of 1 to 256 characters without control characters",
    "created_at": "should be an ISO 8601 time with its offset, such as '2030-01-31T12:00:00Z'",
    "payload_ref": "should be a text of 1 to 2048 characters without control characters",
    "payload_inline": "should be an object with text keys",
    "sequence": "should be an int of at least 0",
    "source": "should be a text of 1 to 255 characters without control characters",
}


class Envelope(BaseModel):
    """What every message carries. `new_envelope` makes one, `from_wire` reads one; both raise EnvelopeError."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: int = Field(ge=1)
    message_type: str = Field(max_length=200, pattern=r"^[^\s\p{Cc}]+$")
    correlation_id: Id
    causation_id: Id | None = None
    idempotency_key: Id
    subject: str | None = Field(default=None, max_length=256, pattern=_NO_CONTROL)
    created_at: _Moment
    payload_ref: str | None = Field(default=None, max_length=2048, pattern=_NO_CONTROL)
    payload_inline: dict[str, Any] | None = None
    sequence: int | None = Field(default=None, ge=0)
    traceparent: Annotated[str | None, BeforeValidator(_traceparent)] = None
    source: Id | None = None

    def to_wire(self, *, payload: bool = True) -> dict[str, Any]:
        """JSON-ready. `payload=False` leaves out what the framework's own body carries; a reference always travels."""
        wire = {name: value for name, value in self.__dict__.items() if value is not None}
        wire["v"] = WIRE_VERSION
        wire["created_at"] = self.created_at.isoformat().replace("+00:00", "Z")
        if not payload:
            wire.pop("payload_inline", None)
        return wire

    @classmethod
    def from_wire(cls, data: object, *, payload: Mapping[str, Any] | None = None) -> Envelope:
        """Read the wire form. `payload` is the framework's body; a payload that the wire form names itself wins."""
        fields = _fields(data)
        if payload is not None and fields.get("payload_ref") is None and fields.get("payload_inline") is None:
            fields["payload_inline"] = dict(payload)
        return _checked(fields)


def _fields(data: object) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise EnvelopeError(f"an envelope is an object with named fields, got {shown(data)}")
    fields = dict(data)
    version = fields.pop("v", None)
    if type(version) is not int or version < 1:
        raise EnvelopeError(
            f"envelope field 'v' should be the wire version, an int of at least 1, got {shown(version)}", field="v"
        )
    if version > WIRE_VERSION:
        raise SchemaTooNew(
            f"the envelope has wire version {shown(version)}, this worker knows up to {WIRE_VERSION}: "
            "deploy a newer task-contract here, then replay",
            field="v",
        )
    return fields


def _checked(fields: dict[str, Any]) -> Envelope:
    try:
        envelope = Envelope.model_validate(fields)
    except ValidationError as error:
        raise _explained(error) from None
    if envelope.payload_ref is not None and envelope.payload_inline is not None:
        raise EnvelopeError(
            "envelope fields 'payload_ref' and 'payload_inline' exclude each other; send one", field="payload_ref"
        )
    return envelope


def _explained(error: ValidationError) -> EnvelopeError:
    problem = error.errors(include_url=False)[0]
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] in ("extra_forbidden", "invalid_key") and name not in _RULES:
        return EnvelopeError(f"envelope field {shown(name)} is unknown in wire version {WIRE_VERSION}", field=name)
    if problem["type"] == "missing":
        return EnvelopeError(f"envelope field {name!r} is missing; it {_RULES[name]}", field=name)
    return EnvelopeError(f"envelope field {name!r} {_RULES[name]}, got {shown(problem['input'])}", field=name)


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


def shown(value: object) -> str:
    """A hostile value, safe to print: escaped and cut short."""
    try:
        return _repr.repr(value)[:200]
    except Exception:  # noqa: BLE001 (a __repr__ that raises, or an int with too many digits to print)
        return f"a value of type {type(value).__name__}"


def new_id() -> str:
    """A fresh id, for whatever has none of its own."""
    return uuid4().hex


def new_envelope(
    message_type: str,
    *,
    idempotency_key: str | None = None,
    schema_version: int = 1,
    **fields: Any,
) -> Envelope:
    """An envelope for a message that is sent now, with correlation and causation from where it is sent."""
    origin = inherit()
    return _checked(
        {
            "schema_version": schema_version,
            "message_type": message_type,
            "correlation_id": origin.correlation_id,
            "causation_id": origin.causation_id,
            "idempotency_key": new_id() if idempotency_key is None else idempotency_key,
            "created_at": datetime.now(timezone.utc),
            **fields,
        }
    )


# --- where a message is sent from ----------------------------------------------------------------------------------


class Context(NamedTuple):
    """What a message sent here inherits."""

    correlation_id: str
    causation_id: str | None = None


_current: ContextVar[Envelope | None] = ContextVar("task_contract_envelope", default=None)
# A running task and an explicit `context` both write this one, so the innermost wins.
_context: ContextVar[Context | None] = ContextVar("task_contract_context", default=None)
_RAISE: Any = object()


@overload
def current_envelope() -> Envelope: ...
@overload
def current_envelope(default: T) -> Envelope | T: ...
def current_envelope(default: Any = _RAISE) -> Any:
    """The envelope of the task that runs here; outside of a task the default, or an error if none is given."""
    envelope = _current.get()
    if envelope is not None:
        return envelope
    if default is not _RAISE:
        return default
    raise ContractError("no task is running here; call current_envelope() inside a task, or give a default")


@contextmanager
def use(envelope: Envelope) -> Iterator[Envelope]:
    """Make this the current envelope; what is sent meanwhile is caused by it."""
    envelope_before = _current.set(envelope)
    context_before = _context.set(Context(envelope.correlation_id, envelope.idempotency_key))
    try:
        yield envelope
    finally:
        _context.reset(context_before)
        _current.reset(envelope_before)


@contextmanager
def context(correlation_id: str | None = None, causation_id: str | None = None) -> Iterator[Context]:
    """Name the job (and the cause) of everything sent in this block; what is left out is inherited or minted once."""
    inherited = inherit()
    chosen = Context(
        _given_id("correlation_id", correlation_id) or inherited.correlation_id,
        _given_id("causation_id", causation_id) or inherited.causation_id,
    )
    before = _context.set(chosen)
    try:
        yield chosen
    finally:
        _context.reset(before)


def inherit() -> Context:
    """What a message sent now gets: from the innermost `context` or running task, else a fresh correlation."""
    return _context.get() or Context(new_id())


def _given_id(name: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and 0 < len(value) <= 255 and value.isprintable()):
        return value
    raise EnvelopeError(f"{name} {_RULES[name]}, got {shown(value)}", field=name)


# --- upgrades ------------------------------------------------------------------------------------------------------


class Upgrades:
    """Functions that lift the payload of a message type from one schema version to the next (A2)."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], Upgrade] = {}

    def register(self, message_type: str, from_version: int) -> Callable[[UpgradeT], UpgradeT]:
        """A decorator: the function takes `{"args": […], "kwargs": {…}}` and returns it for `from_version + 1`."""
        if type(from_version) is not int or from_version < 1:
            raise ConfigurationError(f"from_version should be an int of at least 1, got {from_version!r}")

        def keep(step: UpgradeT) -> UpgradeT:
            known = self._steps.setdefault((message_type, from_version), step)
            if _home(known) != _home(step):  # the same function again is a module that was reloaded
                raise ConfigurationError(
                    f"{message_type!r} has an upgrade from version {from_version} already: {_home(known)}; remove one"
                )
            self._steps[message_type, from_version] = step
            return step

        return keep

    def upgrade(self, envelope: Envelope, payload: Payload, to_version: int) -> tuple[Envelope, Payload]:
        """Envelope and payload at the version this worker speaks."""
        if envelope.schema_version == to_version:
            return envelope, payload
        if envelope.schema_version > to_version:
            raise SchemaTooNew(
                f"{envelope.message_type!r} arrived in schema version {envelope.schema_version}, this worker knows up "
                f"to {to_version}: deploy the worker, then replay",
                field="schema_version",
            )
        steps = [self._step(envelope.message_type, version) for version in range(envelope.schema_version, to_version)]
        payload = _copied(payload)  # the original is what a dead letter has to show
        for version, step in enumerate(steps, envelope.schema_version):
            payload = _lifted(step, payload, envelope.message_type, version)
        return _at_version(envelope, payload, to_version), payload

    def _step(self, message_type: str, version: int) -> Upgrade:
        step = self._steps.get((message_type, version))
        if step is None:
            raise EnvelopeError(
                f"{message_type!r} has no upgrade from schema version {version} to {version + 1}; "
                "register one, then replay",
                field="schema_version",
            )
        return step


def _copied(payload: Payload) -> Payload:
    try:
        return copy.deepcopy(payload)
    except Exception as error:  # too deep, or an object that cannot be copied
        reason = f"the payload cannot be upgraded: {type(error).__name__} while copying it"
        raise EnvelopeError(reason, field="schema_version") from error


def _home(step: Upgrade) -> str:
    return f"{getattr(step, '__module__', '?')}.{getattr(step, '__qualname__', type(step).__qualname__)}"


def _lifted(step: Upgrade, payload: Payload, message_type: str, version: int) -> Payload:
    what = f"the upgrade of {message_type!r} from schema version {version} to {version + 1}"
    try:
        lifted = step(payload)
    except Exception as error:
        reason = f"{what} failed with {type(error).__name__}: {message_of(error)}; fix it, then replay"
        raise EnvelopeError(reason, field="schema_version") from error
    if not isinstance(lifted, dict):
        raise EnvelopeError(f"{what} returned {shown(lifted)}; return the payload, a dict", field="schema_version")
    return lifted


def _at_version(envelope: Envelope, payload: Payload, version: int) -> Envelope:
    changes: dict[str, Any] = {"schema_version": version}
    if envelope.payload_inline is not None:
        changes["payload_inline"] = payload
    return envelope.model_copy(update=changes)
