"""What the other side said, read from real exceptions of real clients against real servers (E6, A13, A16)."""

from __future__ import annotations

import asyncio
import base64
import socket
import socketserver
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar

import aiohttp
import botocore.config
import botocore.exceptions
import botocore.session
import grpc
import grpc.aio
import httpx
import pytest
import requests
import urllib3
from amqp import exceptions as amqp_errors

from task_contract.classify import classify
from task_contract.upstream import grpc_code_of, seconds_until, status_of
from tests.core.raising import caught

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
NOW = NOON.timestamp()
IMPATIENT = 0.2


# ---- servers ---------------------------------------------------------------------------------------------------------


class Site(BaseHTTPRequestHandler):
    """`/status/503?Retry-After=7` answers 503 with that header; the other paths misbehave as they are called."""

    ends: ClassVar[threading.Event] = threading.Event()

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = urllib.parse.unquote(self.path).partition("?")
        _, what, *rest = path.split("/")
        if what == "slow":
            self.ends.wait(5)
        elif what == "hang-up":
            self.close_connection = True
        elif what == "truncated":
            self.reply(200, b"short", {"Content-Length": "1000"})
        elif what == "circle":
            self.reply(302, b"", {"Location": "/circle"})
        elif what == "not-json":
            self.reply(200, b"<html>", {"Content-Type": "application/json"})
        else:
            name, _, value = query.partition("=")
            self.reply(int(rest[0]), b"", {name: value} if name else {})

    do_GET = do_POST = do_PUT = answer  # noqa: N815  the names are http.server's

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is http.server's
        pass


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that gives up is the point of some tests


def serve(server: socketserver.BaseServer) -> Iterator[Any]:
    # A poll of 0.5 s, the default, is what shutting down would wait for.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    Site.ends.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    Site.ends = threading.Event()
    for server in serve(QuietServer(("127.0.0.1", 0), Site)):
        yield f"http://127.0.0.1:{server.server_port}"


# A certificate that nobody signed, and its key, made for this file: `openssl req -x509 -newkey ec -nodes …`
KEY = (
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg+Ti1ODtZfRRyD+8SdUVAKcFteyqdadpTFVgYivKPo8ChRANCAAQ4GCYshxpTCYpw"
    "jA5sWOzvhSW6LiGNokyFHOcsBWaEJZzJEh3VZPIu/FcctOhSaxhaJ/mjjF4CWFBHH7n4VCir"
)
CERTIFICATE = (
    "MIIBfzCCASWgAwIBAgIUA3wWVEuOTI0R69SmpeKMdXqDCCUwCgYIKoZIzj0EAwIwFDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExODExNDMw"
    "OVoYDzIxMjYxMDI1MTE0MzA5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQ4GCYshxpTCYpwjA5sWOzv"
    "hSW6LiGNokyFHOcsBWaEJZzJEh3VZPIu/FcctOhSaxhaJ/mjjF4CWFBHH7n4VCiro1MwUTAdBgNVHQ4EFgQUh4w/YM+VaQSD7WjxiYIWcm8jnecw"
    "HwYDVR0jBBgwFoAUh4w/YM+VaQSD7WjxiYIWcm8jnecwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBJT2T/JhmCZc4lj3XibrVb"
    "mCFHFHW4dg1mflu3fl3NTQIhAJHRNQ+vC6ndIY4c45Ty5GYeWr7Xo/8sk/p+sjFdOhvA"
)


@pytest.fixture(scope="module")
def untrusted_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pem = tmp_path_factory.mktemp("tls") / "both.pem"
    parts = (("PRIVATE KEY", KEY), ("CERTIFICATE", CERTIFICATE))
    blocks = ((kind, base64.encodebytes(base64.b64decode(text)).decode()) for kind, text in parts)
    pem.write_text("".join(f"-----BEGIN {kind}-----\n{block}-----END {kind}-----\n" for kind, block in blocks))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = QuietServer(("127.0.0.1", 0), Site)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    for running in serve(server):
        yield f"https://localhost:{running.server_port}"


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# ---- HTTP clients ----------------------------------------------------------------------------------------------------


def by_requests(url: str, verify: bool | str = True) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=IMPATIENT, verify=verify).raise_for_status()


def by_httpx(url: str) -> None:
    with httpx.Client(trust_env=False, timeout=IMPATIENT, follow_redirects=True) as client:
        client.get(url).raise_for_status()


def by_aiohttp(url: str) -> None:
    async def get() -> None:
        timeout = aiohttp.ClientTimeout(sock_read=IMPATIENT)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            response.raise_for_status()
            await response.read()

    asyncio.run(get())


def by_urllib(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=IMPATIENT) as response:
        response.read()


def by_botocore(url: str) -> None:
    scheme, _, rest = urllib.parse.unquote(url).partition("://")
    host, _, path = rest.partition("/")
    bucket, _, key = path.partition("/")
    session = botocore.session.get_session()
    session.set_credentials("key", "secret")
    config = botocore.config.Config(
        retries={"total_max_attempts": 1},
        connect_timeout=IMPATIENT,
        read_timeout=IMPATIENT,
        proxies={},
        s3={"addressing_style": "path"},
    )
    client = session.create_client("s3", "eu-west-1", endpoint_url=f"{scheme}://{host}", config=config)
    try:
        client.get_object(Bucket=bucket or "bucket", Key=key or "key")["Body"].read()
    finally:
        client.close()


HTTP_CLIENTS = [by_requests, by_httpx, by_aiohttp, by_urllib, by_botocore]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "permanent"),
        (401, "permanent"),
        (403, "permanent"),
        (404, "permanent"),
        (408, "transient"),
        (409, "permanent"),
        (410, "permanent"),
        (422, "permanent"),
        (423, "permanent"),
        (425, "transient"),
        (429, "transient"),
        (500, "transient"),
        (501, "permanent"),
        (502, "transient"),
        (503, "transient"),
        (504, "transient"),
        (505, "permanent"),
    ],
)
@pytest.mark.parametrize("get", HTTP_CLIENTS)
def test_status_settles_the_class(site: str, get: Callable[[str], None], status: int, kind: str) -> None:  # E6, A16
    found = classify(caught(lambda: get(f"{site}/status/{status}")))
    assert (found.kind, found.status, found.rate_limited) == (kind, status, status == 429)
    assert found.retry_after is None
    assert str(status) in found.because


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("0", 0.0),
        (format_datetime(NOON + timedelta(minutes=5), usegmt=True), 300.0),  # IMF-fixdate
        ("Tuesday, 01-Jan-30 12:00:30 GMT", 30.0),  # RFC 850
        ("Tue Jan  1 12:00:40 2030", 40.0),  # asctime
        (format_datetime(NOON - timedelta(minutes=5), usegmt=True), 0.0),
        ("soon", None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("get", HTTP_CLIENTS)
def test_retry_after_header(site: str, get: Callable[[str], None], header: str, seconds: float | None) -> None:  # A13
    url = f"{site}/status/429?Retry-After={urllib.parse.quote(header)}"
    found = classify(caught(lambda: get(url)), now=NOW)
    assert (found.kind, found.retry_after) == ("transient", seconds)


@pytest.mark.parametrize("name", ["retry-after", "RETRY-AFTER", "Retry-after"])
@pytest.mark.parametrize("get", HTTP_CLIENTS)
def test_retry_after_in_any_spelling(site: str, get: Callable[[str], None], name: str) -> None:  # A13
    assert classify(caught(lambda: get(f"{site}/status/503?{name}=7"))).retry_after == 7.0


@pytest.mark.parametrize("path", ["/slow", "/hang-up", "/truncated"])
@pytest.mark.parametrize("get", HTTP_CLIENTS)
def test_broken_transfers_are_transient(site: str, get: Callable[[str], None], path: str) -> None:  # E6
    found = classify(caught(lambda: get(site + path)))
    assert (found.kind, found.status) == ("transient", None), found


@pytest.mark.parametrize("get", HTTP_CLIENTS)
def test_connection_refused_is_transient(closed_port: int, get: Callable[[str], None]) -> None:  # E6
    found = classify(caught(lambda: get(f"http://127.0.0.1:{closed_port}/")))
    assert (found.kind, found.status) == ("transient", None), found


@pytest.mark.parametrize("get", HTTP_CLIENTS)
def test_refused_certificate_is_permanent(untrusted_site: str, get: Callable[[str], None]) -> None:  # E6
    error = caught(lambda: get(untrusted_site + "/status/200"))
    assert classify(error).kind == "permanent", repr(error)


@pytest.mark.parametrize("get", [by_requests, by_httpx, by_aiohttp])
def test_circle_of_redirects_is_permanent(site: str, get: Callable[[str], None]) -> None:  # E6
    assert classify(caught(lambda: get(site + "/circle"))).kind == "permanent"


@pytest.mark.parametrize("url", ["nonsense://x/", "http:///"])
@pytest.mark.parametrize("get", [by_requests, by_httpx, by_aiohttp])
def test_bad_url_is_permanent(get: Callable[[str], None], url: str) -> None:  # E6
    error = caught(lambda: get(url))
    assert classify(error).kind == "permanent", repr(error)


def test_body_that_is_not_json_is_permanent(site: str) -> None:  # E6
    # requests' JSONDecodeError is an OSError and a ValueError at once.
    with requests.Session() as session:
        error = caught(lambda: session.get(site + "/not-json", timeout=5).json())
    assert isinstance(error, OSError)
    assert isinstance(error, ValueError)
    assert classify(error).kind == "permanent"


def test_urllib3_retries_used_up(site: str, closed_port: int) -> None:  # E6
    with urllib3.PoolManager() as pool:
        retries = urllib3.Retry(1, status_forcelist=[503], backoff_factor=0)
        for url in (f"{site}/status/503", f"http://127.0.0.1:{closed_port}/"):
            error = caught(lambda url=url: pool.request("GET", url, retries=retries))  # type: ignore[misc]
            assert isinstance(error, urllib3.exceptions.MaxRetryError)
            assert classify(error).kind == "transient"


# ---- AWS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "kind", "rate_limited"),
    [
        ("Throttling", 400, "transient", True),
        ("ThrottlingException", 400, "transient", True),
        ("TooManyRequestsException", 429, "transient", True),
        ("RequestLimitExceeded", 503, "transient", True),
        ("SlowDown", 503, "transient", True),
        ("ProvisionedThroughputExceededException", 400, "transient", True),
        ("RequestTimeout", 400, "transient", False),
        ("InternalError", 200, "transient", False),  # S3 says it in the body of a 200
        ("NoSuchKey", 404, "permanent", False),
        ("AccessDenied", 403, "permanent", False),
        ("ValidationException", 400, "permanent", False),
    ],
)
def test_aws_error_codes(code: str, status: int, kind: str, rate_limited: bool) -> None:  # E6, A13
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    found = classify(botocore.exceptions.ClientError(response, "GetObject"))
    assert (found.kind, found.status, found.rate_limited) == (kind, status, rate_limited)


def test_aws_parameters_are_permanent() -> None:  # E6
    error = botocore.exceptions.ParamValidationError(report="Missing required parameter")
    assert classify(error).kind == "permanent"


# ---- gRPC ------------------------------------------------------------------------------------------------------------


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Fails with the code that the request names."""

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.fail)

    def fail(self, request: bytes, context: Any) -> bytes:
        if request == b"raise":
            raise RuntimeError("a bug in the server")
        if request == b"sleep":
            time.sleep(IMPATIENT * 2)
            return b""
        name, _, wait = request.decode().partition(" ")
        if wait:
            key, _, value = wait.partition("=")
            context.set_trailing_metadata([(key, value)])
        context.abort(getattr(grpc.StatusCode, name), "as asked")
        raise AssertionError("abort raises")


@pytest.fixture(scope="module")
def grpc_call() -> Iterator[Callable[[str], BaseException]]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([Service()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        fail = channel.unary_unary("/test.Service/Fail")
        yield lambda request: caught(lambda: fail(request.encode(), timeout=IMPATIENT if request == "sleep" else 5))
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("request_", "kind", "status"),
    [
        ("UNAVAILABLE", "transient", 503),
        ("DEADLINE_EXCEEDED", "transient", 504),
        ("RESOURCE_EXHAUSTED", "transient", 429),
        ("ABORTED", "transient", 409),
        ("INTERNAL", "transient", 500),
        ("UNKNOWN", "transient", 500),
        ("CANCELLED", "transient", 499),
        ("INVALID_ARGUMENT", "permanent", 400),
        ("NOT_FOUND", "permanent", 404),
        ("ALREADY_EXISTS", "permanent", 409),
        ("PERMISSION_DENIED", "permanent", 403),
        ("UNAUTHENTICATED", "permanent", 401),
        ("FAILED_PRECONDITION", "permanent", 400),
        ("OUT_OF_RANGE", "permanent", 400),
        ("UNIMPLEMENTED", "permanent", 501),
        ("DATA_LOSS", "permanent", 500),
        ("raise", "transient", 500),
        ("sleep", "transient", 504),
    ],
)
def test_grpc_codes(
    grpc_call: Callable[[str], BaseException], request_: str, kind: str, status: int
) -> None:  # E6, A16
    found = classify(grpc_call(request_))
    assert (found.kind, found.status, found.rate_limited) == (kind, status, status == 429)


@pytest.mark.parametrize(
    ("metadata", "seconds"), [("retry-after=9", 9.0), ("grpc-retry-pushback-ms=1500", 1.5), ("other=9", None)]
)
def test_grpc_retry_after(
    grpc_call: Callable[[str], BaseException], metadata: str, seconds: float | None
) -> None:  # A13
    assert classify(grpc_call(f"RESOURCE_EXHAUSTED {metadata}")).retry_after == seconds


def test_grpc_closed_port(closed_port: int) -> None:  # E6
    with grpc.insecure_channel(f"127.0.0.1:{closed_port}") as channel:
        found = classify(caught(lambda: channel.unary_unary("/test.Service/Fail")(b"", timeout=5)))
    assert (found.kind, found.status) == ("transient", 503)


def test_grpc_asyncio() -> None:  # E6
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(("retry-after", "3"))
    )
    found = classify(error)
    assert (found.kind, found.status, found.retry_after) == ("transient", 503, 3.0)


# ---- status and Retry-After wherever they stand ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "status"),
    [
        ({"status_code": 503}, 503),
        ({"status": 404}, 404),
        ({"http_status": 402}, 402),
        ({"code": 410}, 410),
        ({"code": HTTPStatus.NOT_FOUND}, 404),  # its name is a gRPC code as well
        ({"code": HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS}, 451),
        ({"code": lambda: SimpleNamespace(name="ABORTED")}, 409),
        ({"code": lambda: 1 / 0}, None),
        ({"status": SimpleNamespace(name="UNAVAILABLE")}, 503),
        ({"grpc_status_code": SimpleNamespace(name="ABORTED"), "code": 409}, 409),
        ({"response": SimpleNamespace(status_code=500)}, 500),
        ({"response": SimpleNamespace(status=502)}, 502),
        ({"resp": SimpleNamespace(status=429)}, 429),
        ({"meta": SimpleNamespace(status=429)}, 429),
        ({"response": {"ResponseMetadata": {"HTTPStatusCode": 500}}}, 500),
        ({"response": {"ResponseMetadata": None}}, None),
        ({"response": None}, None),
        ({"status_code": None, "response": SimpleNamespace(status_code=500)}, 500),
        ({"status_code": True}, None),
        ({"status_code": 99}, None),
        ({"status_code": 600}, None),
        ({"status_code": 0, "code": 20003}, None),
        ({"status_code": "503"}, None),
        ({"status_code": 503.0}, None),
        ({"code": "e3q8"}, None),
        ({"code": int}, None),
        ({}, None),
    ],
)
def test_status_of(attributes: dict[str, object], status: int | None) -> None:  # E6, A16
    error = Exception()
    error.__dict__.update(attributes)
    assert status_of(error) == status


def test_http_and_grpc_share_names() -> None:  # E6
    error = Exception()
    error.__dict__["status"] = HTTPStatus.NOT_FOUND
    assert grpc_code_of(error) is None


def test_a_status_that_is_no_error_says_nothing() -> None:  # E6
    error = Exception()
    error.__dict__["status"] = 302
    found = classify(error)
    assert (found.kind, found.status) == ("unclassified", 302)


def test_numbers_of_other_protocols_are_no_status() -> None:  # E6
    # AMQP's 530 (not allowed) is final, though a 5xx of HTTP is not.
    for error in (amqp_errors.NotAllowed(), amqp_errors.NotFound()):
        assert error.code in (530, 404)
        found = classify(error)
        assert (found.kind, found.status) == ("permanent", None)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (5, 5.0),
        (2.5, 2.5),
        (0, 0.0),
        (timedelta(minutes=1), 60.0),
        (timedelta(minutes=-1), None),
        (NOON + timedelta(seconds=30), 30.0),
        (NOON - timedelta(days=1), 0.0),
        (datetime.fromtimestamp(NOW + 10), 10.0),  # noqa: DTZ006  a naive one, on purpose
        ("120", 120.0),
        (b"120", 120.0),
        ("Tue, 01 Jan 2030 12:00:10 GMT", 10.0),
        ("Tue, 01 Jan 2030 13:00:10 +0100", 10.0),
        ("Tue, 01 Jan 2030 12:00:10", 10.0),
        (None, None),
        (True, None),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        ("1e3", None),
        ("٣", None),
        ("9" * 5000, None),
        ("Tue, 01 Jan 99999 12:00:10 GMT", None),
        (object(), None),
        ([5], None),
    ],
)
def test_seconds_until(value: object, seconds: float | None) -> None:  # A13
    found = seconds_until(value, NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_dates_without_a_zone(monkeypatch: pytest.MonkeyPatch) -> None:  # A13
    """GMT in HTTP, local time in Python."""
    monkeypatch.setenv("TZ", "XYZ+5")
    time.tzset()
    try:
        assert seconds_until("Tue, 01 Jan 2030 12:00:10", NOW) == 10.0
        assert seconds_until(datetime(2030, 1, 1, 7, 0, 20), NOW) == 20.0  # noqa: DTZ001  naive on purpose
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("attributes", "seconds"),
    [
        ({"retry_after": 5}, 5.0),
        ({"retry_after": lambda: 5}, None),
        ({"headers": {"rEtRy-AfTeR": "5"}}, 5.0),
        ({"headers": [("Retry-After", "5")]}, 5.0),
        ({"headers": [(b"x", b"y"), ("Retry-After", b"5")]}, 5.0),
        ({"headers": {"Retry-After": ["5", "7"]}}, 5.0),
        ({"headers": {"retry-after-ms": "250"}}, 0.25),
        ({"headers": {"x-ms-retry-after-ms": "250", "Retry-After": "3"}}, 3.0),
        ({"headers": "Retry-After: 5"}, None),
        ({"headers": 5}, None),
        ({"retry_after": "garbage", "headers": {"Retry-After": "5"}}, 5.0),
        ({"meta": SimpleNamespace(headers={"retry-after": "5"})}, 5.0),
        ({"resp": {"retry-after": "5"}}, 5.0),
        ({"response": {"ResponseMetadata": {"HTTPHeaders": {"retry-after": "5"}}}}, 5.0),
        ({"trailing_metadata": lambda: (("retry-after", "5"),)}, 5.0),
        ({}, None),
    ],
)
def test_retry_after_places(attributes: dict[str, object], seconds: float | None) -> None:  # A13
    error = Exception()
    error.__dict__.update(attributes)
    assert classify(error, now=NOW).retry_after == seconds
