"""What is known of exceptions by their names: the standard library, database drivers, brokers, HTTP clients.

A class is looked up by its top-level package and its name, along the MRO, the most specific first. So a subclass is
recognised, an exception to the rule is one line (redis's AuthenticationError is a ConnectionError that no retry
helps), and somebody's own `OperationalError` in another package is not taken for a database's.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import TypeAlias

from task_contract.peek import ancestors, is_exception, item, message_of, name_of, package_of, peek, quiet
from task_contract.upstream import Kind

Judge: TypeAlias = Callable[[BaseException], Kind | None]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _numbers(names: str) -> frozenset[int]:
    """The values of these errno names; a platform need not have each of them."""
    return frozenset(getattr(errno, name) for name in names.split() if hasattr(errno, name))


# Builtin exceptions that a library of ours raises under another name are found through the MRO as well.
_TRANSIENT = {
    "builtins": (
        "TimeoutError ConnectionError BlockingIOError InterruptedError "
        # Memory is shared with the neighbours of this attempt; real poison is bounded by attempts and crashes.
        "MemoryError"
    ),
    "asyncio": "TimeoutError IncompleteReadError",
    "concurrent": "TimeoutError BrokenExecutor",
    "multiprocessing": "TimeoutError",
    "subprocess": "TimeoutExpired",
    # A name that does not resolve is what a worker sees while DNS or the neighbour's container is starting.
    "socket": "gaierror herror",
    "ssl": "SSLError",
    "http": "RemoteDisconnected IncompleteRead BadStatusLine",
    "smtplib": "SMTPServerDisconnected",
    "aiosmtplib": "SMTPServerDisconnected SMTPConnectError SMTPTimeoutError",
    "ftplib": "error_temp",
    # Whether the lease is lost is for the store to say when the attempt is given up; the work itself may well succeed.
    "task_contract": "StoreUnavailable LeaseLost",
    "requests": "ConnectionError Timeout ChunkedEncodingError RetryError",
    "urllib3": "TimeoutError ProtocolError PoolError ProxyError SSLError IncompleteRead ResponseError",
    "httpx": "TransportError",
    "httpcore": "NetworkError TimeoutException ProtocolError ProxyError ConnectionNotAvailable",
    "aiohttp": "ClientConnectionError ClientPayloadError UploadAbortedError HttpProcessingError",
    "botocore": (
        "ConnectionError HTTPClientError IncompleteReadError ChecksumError FlexibleChecksumError "
        "CredentialRetrievalError MetadataRetrievalError TokenRetrievalError"
    ),
    "grpc": "FutureTimeoutError",
    "stripe": "APIConnectionError",
    "elastic_transport": "ConnectionError ConnectionTimeout",
    "redis": (
        "ConnectionError TimeoutError ReadOnlyError TryAgainError ClusterError RedisClusterException AskError "
        "WatchError LockError OutOfMemoryError"
    ),
    "psycopg": "OperationalError InterfaceError",
    "psycopg2": "OperationalError InterfaceError",
    "asyncpg": "PostgresConnectionError InterfaceError",
    "sqlalchemy": "OperationalError InterfaceError DisconnectionError TimeoutError StaleDataError",
    "django": "OperationalError InterfaceError",
    "pymysql": "InterfaceError",
    "MySQLdb": "InterfaceError",
    "mysql": "InterfaceError PoolError",
    "pymongo": "ConnectionFailure ExecutionTimeout WTimeoutError",
    "kombu": "OperationalError LimitExceeded",
    "amqp": "ConnectionError RecoverableChannelError MessageNacked",
    "pika": "AMQPConnectionError NackError",
    # A time limit is a timeout. A crash or a shutdown is the adapter's to count, before it comes here.
    "billiard": "SoftTimeLimitExceeded TimeLimitExceeded WorkerLostError",
    "celery": "TimeoutError",
    "dramatiq": "BrokerConnectionError ConnectionError RateLimitExceeded TimeLimitExceeded ResultTimeout",
}

_DATABASE_MISTAKES = "IntegrityError DataError ProgrammingError NotSupportedError"

_PERMANENT = {
    # ValueError covers UnicodeError, json.JSONDecodeError and pydantic's ValidationError; LookupError KeyError and
    # IndexError; SyntaxError covers XML. RecursionError: the same input is as deep at the next try.
    "builtins": (
        "TypeError AttributeError LookupError NameError ValueError ImportError AssertionError NotImplementedError "
        "SyntaxError RecursionError ArithmeticError "
        # These are the 403, 404 and 409 of a file system.
        "FileNotFoundError FileExistsError PermissionError IsADirectoryError NotADirectoryError"
    ),
    "ssl": "SSLCertVerificationError",
    "http": "InvalidURL",
    "smtplib": "SMTPNotSupportedError",
    "ftplib": "error_perm",
    "pickle": "PickleError",
    "_pickle": "PickleError",
    "struct": "error",
    "zlib": "error",
    "gzip": "BadGzipFile",
    "zipfile": "BadZipFile",
    "tarfile": "TarError",
    "_csv": "Error",
    "configparser": "Error",
    "yaml": "YAMLError",
    "jsonschema": "ValidationError SchemaError",
    "task_contract": "PayloadMismatch StoreCorrupt AlreadyEnqueued InvalidTransition",
    "requests": "InvalidJSONError ContentDecodingError TooManyRedirects URLRequired",
    "urllib3": "DecodeError InvalidHeader",
    "httpx": "UnsupportedProtocol LocalProtocolError DecodingError TooManyRedirects InvalidURL",
    "httpcore": "UnsupportedProtocol LocalProtocolError",
    "aiohttp": "ContentTypeError TooManyRedirects NonHttpUrlClientError ServerFingerprintMismatch",
    "botocore": "ParamValidationError ValidationError",
    "redis": (
        "AuthenticationError AuthorizationError NoPermissionError AuthenticationWrongNumberOfArgsError DataError "
        "ClusterCrossSlotError CrossSlotTransactionError InvalidPipelineStack"
    ),
    "psycopg": _DATABASE_MISTAKES,
    "psycopg2": _DATABASE_MISTAKES,
    # SQLite calls a bad parameter an InterfaceError; there is no connection that could break.
    "sqlite3": _DATABASE_MISTAKES + " InterfaceError",
    "pymysql": _DATABASE_MISTAKES,
    "MySQLdb": _DATABASE_MISTAKES,
    "mysql": _DATABASE_MISTAKES,
    "sqlalchemy": _DATABASE_MISTAKES + " ArgumentError CompileError",
    "django": _DATABASE_MISTAKES + " ValidationError ImproperlyConfigured SuspiciousOperation PermissionDenied",
    "pymongo": "DuplicateKeyError InvalidDocument InvalidOperation",
    "kombu": "SerializationError SerializerNotInstalled",
    "amqp": "IrrecoverableConnectionError IrrecoverableChannelError ContentTooLarge",
    "pika": "AuthenticationError ProbableAuthenticationError ProbableAccessDeniedError",
    "dramatiq": "DecodeError",
}

_TRANSIENT_ERRNO = _numbers(
    "ECONNRESET ECONNREFUSED ECONNABORTED EPIPE ESHUTDOWN ETIMEDOUT EHOSTUNREACH EHOSTDOWN ENETUNREACH ENETDOWN "
    "ENETRESET ENOTCONN EADDRNOTAVAIL EADDRINUSE EAGAIN EWOULDBLOCK EINTR EINPROGRESS EMFILE ENFILE ENOBUFS ENOMEM "
    "ENOSPC EDQUOT EIO ESTALE EBUSY ETXTBSY EDEADLK ENOLCK"
)
_PERMANENT_ERRNO = _numbers(
    "ENOENT EACCES EPERM EEXIST EISDIR ENOTDIR ENOTEMPTY ENAMETOOLONG ELOOP EINVAL EBADF EXDEV ENOEXEC E2BIG EROFS "
    "EFBIG ENOTSUP ENOSYS"
)

# https://www.postgresql.org/docs/current/errcodes-appendix.html; the first two characters are the class.
_TRANSIENT_SQLSTATE = _words(
    "08 40 53 "  # connection, transaction rollback (deadlock, serialisation), insufficient resources
    "55006 55P03 "  # object in use, lock not available
    "57014 57P01 57P02 57P03 57P05 "  # statement timeout, shutdown, crash, starting up, idle session
    "25006 25P03 25P04 "  # read-only (a failover, as redis's READONLY), idle in transaction, transaction timeout
    "58000 58030"  # system error, I/O error
)
_PERMANENT_SQLSTATE = _words("0A 21 22 23 28 2B 2D 2F 34 38 39 3B 3D 3F 42 44 54 40002 57P04")

# MySQL's OperationalError is the drawer for what has no other place, "unknown column" included: the number counts.
_TRANSIENT_MYSQL = frozenset(
    {1040, 1042, 1043, 1047, 1053, 1077, 1079, 1080, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1226}
    | {1290, 1317, 1836, 1927, 2002, 2003, 2006, 2012, 2013, 2014, 2026, 2055, 3024, 3058, 3572, 4031}
)
_PERMANENT_MYSQL = frozenset({1044, 1045, 1046, 1049, 1054, 1064, 1091, 1136, 1142, 1143, 1146, 1193, 1305, 1364, 1366})

_TRANSIENT_REDIS = _words("BUSY LOADING MASTERDOWN CLUSTERDOWN TRYAGAIN NOREPLICAS MISCONF READONLY OOM")
_PERMANENT_REDIS = _words("WRONGTYPE CROSSSLOT NOPERM NOAUTH WRONGPASS")


def judge_name(error: BaseException) -> tuple[Kind, str] | None:
    """What the classes of an error say, and which class said it; None for an error that nobody here knows.

    "unclassified" is an answer, too: the family is known, and known to say nothing in this case.
    """
    for known in (_database_underneath(error), _by_sqlstate(error), _by_class(error)):
        if known:
            return known
    return None


def _by_class(error: BaseException) -> tuple[Kind, str] | None:
    for cls in ancestors(error):
        entry = _KNOWN.get((package_of(cls), cls.__name__))
        kind = entry(error) if callable(entry) else entry
        if kind == "transient" and _certificate_refused(error):
            return "permanent", "a certificate that does not verify"
        if kind:
            return kind, name_of(cls)
    return None


def _database_underneath(error: BaseException) -> tuple[Kind, str] | None:
    """SQLAlchemy and Django wrap the driver's error, and the driver knows more: SQLite's "no such table" is an
    OperationalError in both, and so is its "database is locked"."""
    if peek(error, "connection_invalidated") is True:
        return "transient", "a database connection that broke"
    if any((package_of(cls), cls.__name__) in _DATABASE_WRAPPERS for cls in ancestors(error)):
        drivers_error = next(_inside(error), None)
        return (_by_sqlstate(drivers_error) or _by_class(drivers_error)) if drivers_error else None
    return None


_DATABASE_WRAPPERS = {("sqlalchemy", "StatementError"), ("django", "Error")}


def _by_sqlstate(error: BaseException) -> tuple[Kind, str] | None:
    """psycopg and asyncpg say `sqlstate`, psycopg2 `pgcode`; all mean the table in the PostgreSQL manual."""
    for name in ("sqlstate", "pgcode"):
        state = peek(error, name)
        if isinstance(state, str) and len(state) == 5:
            kind = _kind_of_sqlstate(state)
            return (kind, f"SQLSTATE {state}") if kind else None
    return None


def _kind_of_sqlstate(state: str) -> Kind | None:
    for code in (state, state[:2]):
        if code in _PERMANENT_SQLSTATE:
            return "permanent"
        if code in _TRANSIENT_SQLSTATE:
            return "transient"
    return None


def _os_error(error: BaseException) -> Kind | None:
    number = peek(error, "errno")
    if not isinstance(number, int):
        return None
    if number in _TRANSIENT_ERRNO:
        return "transient"
    return "permanent" if number in _PERMANENT_ERRNO else None


def _url_error(error: BaseException) -> Kind | None:
    reason = peek(error, "reason")
    # A reason of the same class would lead here again, for ever if it is its own.
    known = _by_class(reason) if is_exception(reason) and type(reason) is not type(error) else None
    return known[0] if known else None


def _sqlite(error: BaseException) -> Kind | None:
    # By text: the number that would be better is there from Python 3.11 on only. SQLite's texts have been stable.
    text = message_of(error).lower()
    if "locked" in text or "busy" in text:
        return "transient"
    mistakes = ("no such ", "syntax error", "has no column", "already exists", "incomplete input", "values for")
    return "permanent" if any(mistake in text for mistake in mistakes) else "unclassified"


def _mysql(error: BaseException) -> Kind | None:
    arguments = peek(error, "args")
    number = arguments[0] if isinstance(arguments, tuple) and arguments else None
    if number in _TRANSIENT_MYSQL:
        return "transient"
    return "permanent" if number in _PERMANENT_MYSQL else "unclassified"


def _redis_reply(error: BaseException) -> Kind | None:
    word = message_of(error).partition(" ")[0]
    if word in _TRANSIENT_REDIS:
        return "transient"
    return "permanent" if word in _PERMANENT_REDIS else None


def _smtp(error: BaseException) -> Kind | None:
    """SMTP counts the other way round: 4yz is "try again later", 5yz is final."""
    code = peek(error, "smtp_code") or peek(error, "code")
    if not isinstance(code, int) or not 400 <= code <= 599:
        return "transient" if code == -1 else None  # smtplib's number for a connection that broke
    return "transient" if code < 500 else "permanent"


def _smtp_recipients(error: BaseException) -> Kind | None:
    """Raised when every recipient was refused; with one "try again" among them, another try can deliver to that one."""
    recipients = peek(error, "recipients")
    codes = [reply[0] for reply in recipients.values()] if isinstance(recipients, dict) else []
    if not codes:
        return None
    return "transient" if any(400 <= code < 500 for code in codes) else "permanent"


def _certificate_refused(error: BaseException) -> bool:
    """Clients report a refused certificate as a connection error, with the truth inside."""
    inner: BaseException | None = error
    for _ in range(6):
        if inner is None:
            return False
        if any(cls.__name__ == "SSLCertVerificationError" and package_of(cls) == "ssl" for cls in ancestors(inner)):
            return True
        inner = next(_inside(inner), None)
    return False


def _inside(error: BaseException) -> Iterator[BaseException]:
    """Where wrappers keep what they wrap: SQLAlchemy, urllib and urllib3, requests, botocore, anyone with `from`."""
    arguments = peek(error, "args")
    first = arguments[0] if isinstance(arguments, tuple) and arguments else None
    botocores = item(peek(error, "kwargs"), "error")
    candidates = (peek(error, "orig"), peek(error, "reason"), peek(error, "__cause__"), first, botocores)
    return (candidate for candidate in candidates if is_exception(candidate))


_JUDGED: dict[tuple[str, str], Judge] = {
    ("builtins", "OSError"): _os_error,
    ("urllib", "URLError"): _url_error,
    ("sqlite3", "OperationalError"): _sqlite,
    ("pymysql", "OperationalError"): _mysql,
    ("pymysql", "InternalError"): _mysql,
    ("MySQLdb", "OperationalError"): _mysql,
    ("mysql", "DatabaseError"): _mysql,
    ("redis", "ResponseError"): _redis_reply,
    ("smtplib", "SMTPResponseException"): _smtp,
    ("smtplib", "SMTPRecipientsRefused"): _smtp_recipients,
    ("aiosmtplib", "SMTPResponseException"): _smtp,
}


def _table() -> dict[tuple[str, str], Kind | Judge]:
    table: dict[tuple[str, str], Kind | Judge] = {key: quiet(judge) for key, judge in _JUDGED.items()}
    kinds: tuple[tuple[Kind, dict[str, str]], ...] = (("transient", _TRANSIENT), ("permanent", _PERMANENT))
    for kind, packages in kinds:
        for package, names in packages.items():
            table.update({(package, name): kind for name in names.split()})
    # Valkey's client is a fork of redis-py and kept its names.
    table.update({("valkey", name): entry for (package, name), entry in table.items() if package == "redis"})
    return table


_KNOWN = _table()
