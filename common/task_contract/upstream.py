"""What the other side said: the status and the Retry-After on any client's exception.

Found by duck typing, so that no client library is imported: a new client needs nothing here as long as it keeps its
status where the others keep theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Literal, TypeAlias

from task_contract.peek import ancestors, called, item, package_of, peek, quiet

Kind: TypeAlias = Literal["transient", "permanent", "unclassified"]

TRANSIENT_4XX = frozenset({408, 425, 429})
PERMANENT_5XX = frozenset({501, 505})
"""Not Implemented and HTTP Version Not Supported: the server says that it will never do this."""

# The HTTP number that google.rpc.Code gives each gRPC code, so that one number serves the logs (A16).
GRPC_AS_HTTP = {
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}
# UNKNOWN and INTERNAL are gRPC's 500: an unhandled exception in the server, a reset stream. CANCELLED in a worker is
# a proxy or a server on its way down; it says nothing against the request.
GRPC_TRANSIENT = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "UNKNOWN", "INTERNAL", "CANCELLED"}
)

# botocore's own lists (botocore/retries/standard.py). AWS sends most of these with status 400.
AWS_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
AWS_TRANSIENT = frozenset({"InternalError", "InternalFailure", "RequestTimeout", "RequestTimeoutException"})

# Their `code` is no answer in HTTP: AMQP's 530 and SMTP's 550 are final refusals, MongoDB counts on its own, and
# aiohttp's parser puts 400 on a response that it could not read.
OTHER_NUMBERS = frozenset({"amqp", "aiosmtplib", "pymongo"})
OTHER_NUMBER_CLASSES = frozenset({("aiohttp", "HttpProcessingError")})

_ON_THE_ERROR = ("status_code", "status", "http_status", "code")
_ON_THE_RESPONSE = ("status_code", "status")
_RESPONSES = ("response", "resp", "meta")
_SECONDS = re.compile(r"\d{1,15}(\.\d{1,15})?", re.ASCII)


@quiet
def status_of(error: BaseException) -> int | None:
    """The HTTP status an exception carries, a gRPC code as its HTTP number; None if there is none."""
    code = grpc_code_of(error)
    return GRPC_AS_HTTP[code] if code else next(_statuses(error), None)


@quiet
def grpc_code_of(error: BaseException) -> str | None:
    """The name of the gRPC code: `grpc` and its asyncio twin (`code()`), google.api_core, grpclib (`status`)."""
    for value in (peek(error, "grpc_status_code"), called(peek(error, "code")), peek(error, "status")):
        name = peek(value, "name")
        # http.HTTPStatus has members of the same names (NOT_FOUND), but they are numbers.
        if isinstance(name, str) and name in GRPC_AS_HTTP and not isinstance(value, int):
            return name
    return None


@quiet
def aws_code_of(error: BaseException) -> str | None:
    """The error code of a botocore ClientError."""
    code = item(item(peek(error, "response"), "Error"), "Code")
    return code if isinstance(code, str) else None


def kind_of_status(status: int | None) -> Kind | None:
    """What a status says about another try; None for 1xx to 3xx, which say nothing."""
    if status is None or status < 400:
        return None
    if status < 500:
        return "transient" if status in TRANSIENT_4XX else "permanent"
    return "permanent" if status in PERMANENT_5XX else "transient"


def judge_answer(error: BaseException) -> tuple[Kind, str] | None:
    """What the other side's answer says, and the words for it; None where the exception carries no answer."""
    aws, grpc = aws_code_of(error), grpc_code_of(error)
    if aws in AWS_THROTTLED or aws in AWS_TRANSIENT:
        return "transient", f"AWS error code {aws}"
    if grpc:
        return ("transient" if grpc in GRPC_TRANSIENT else "permanent"), f"gRPC code {grpc}"
    status = status_of(error)
    kind = kind_of_status(status)
    return (kind, f"status {status}") if kind else None


def is_rate_limited(error: BaseException) -> bool:
    return status_of(error) == 429 or aws_code_of(error) in AWS_THROTTLED


def retry_after_of(error: BaseException, now: float) -> float | None:
    """Seconds to wait, as the error or the response in it asks for; None if nobody asked or the value is garbage."""
    wanted = (seconds_until(value, now) for value in _retry_afters(error))
    return next((seconds for seconds in wanted if seconds is not None), None)


@quiet
def seconds_until(value: object, now: float) -> float | None:
    """Seconds from `now`: a number, a timedelta, a datetime, or the text of a Retry-After header in either form.

    A moment in the past is 0. A negative number, NaN, infinity and other text are None. A naive datetime is local
    time, as everywhere in Python; an HTTP-date without a zone is GMT, as everywhere in HTTP.
    """
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        return _seconds_from_text(value.strip(), now)
    if isinstance(value, datetime):
        return max(0.0, value.timestamp() - now)
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _seconds_from_text(text: str, now: float) -> float | None:
    if _SECONDS.fullmatch(text):
        return float(text)
    moment = parsedate_to_datetime(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return max(0.0, moment.timestamp() - now)


def _speaks_http(error: BaseException) -> bool:
    classes = ancestors(error)
    if Exception not in classes:  # the code of a SystemExit is for the shell
        return False
    return not any(
        package_of(cls) in OTHER_NUMBERS or (package_of(cls), cls.__name__) in OTHER_NUMBER_CLASSES for cls in classes
    )


def _statuses(error: BaseException) -> Iterator[int]:
    """Every place where a known client keeps the status, the error's own attributes first."""
    if not _speaks_http(error):
        return
    responses = [peek(error, name) for name in _RESPONSES]
    candidates = [peek(error, name) for name in _ON_THE_ERROR]
    candidates += [peek(response, name) for response in responses for name in _ON_THE_RESPONSE]
    candidates += [item(item(response, "ResponseMetadata"), "HTTPStatusCode") for response in responses[:1]]
    for candidate in candidates:
        if isinstance(candidate, int) and 100 <= candidate <= 599:
            yield int(candidate)


def _retry_afters(error: BaseException) -> Iterator[object]:
    yield peek(error, "retry_after")
    headers = [fields for place in _header_places(error) for fields in _fields(place)]
    yield from (value for name, value in headers if name == "retry-after")
    # Azure and OpenAI send milliseconds in a header of their own, gRPC its "pushback".
    for name, value in headers:
        if name in ("retry-after-ms", "x-ms-retry-after-ms", "grpc-retry-pushback-ms"):
            yield _milliseconds(value)


def _header_places(error: BaseException) -> Iterator[object]:
    response = peek(error, "response")
    yield peek(error, "headers")
    yield peek(response, "headers")
    yield item(item(response, "ResponseMetadata"), "HTTPHeaders")
    yield peek(peek(error, "meta"), "headers")
    yield peek(error, "resp")  # httplib2: the response is the mapping of its headers
    yield called(peek(error, "trailing_metadata"))


def _fields(headers: object) -> list[tuple[str, object]]:
    """Names (lower case) and values of a mapping or a list of pairs, whatever its own idea of upper and lower case."""
    return _pairs(called(peek(headers, "items")) or headers) or []


@quiet
def _pairs(headers: object) -> list[tuple[str, object]] | None:
    if headers is None or isinstance(headers, (str, bytes)):
        return None
    return [(str(name).lower(), _one(value)) for name, value in islice(headers, 200)]  # type: ignore[call-overload]


def _one(value: object) -> object:
    # Where a name may occur twice, some mappings (grpc.aio.Metadata) have a list for every name.
    return value[0] if isinstance(value, (list, tuple)) and value else value


@quiet
def _milliseconds(value: object) -> float | None:
    seconds = seconds_until(value, now=0.0)
    return None if seconds is None else seconds / 1000
