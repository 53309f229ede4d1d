"""The proxy misbehaves exactly as asked, in front of a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.proxy import Proxy


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    with Proxy.for_url(redis_url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy, redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(proxy.url(redis_url), socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
        yield client


@pytest.fixture
def direct(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def test_forwards_what_it_gets(client: redis.Redis, namespace: str) -> None:
    value = b"x" * 1_000_000
    client.set(namespace, value)
    assert client.get(namespace) == value


def test_a_lost_reply_is_an_error_to_the_client_but_the_server_did_the_work(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis, namespace: str
) -> None:
    proxy.drop_reply(b"INCR")
    with pytest.raises(redis.ConnectionError):
        client.incr(namespace)
    assert direct.get(namespace) == b"1"
    assert proxy.dropped == 1


def test_only_the_matching_request_loses_its_reply(proxy: Proxy, client: redis.Redis, namespace: str) -> None:
    proxy.drop_reply(b"INCR")
    client.set(namespace, 5)
    assert client.get(namespace) == b"5"
    assert proxy.dropped == 0


def test_replies_are_lost_as_often_as_asked(proxy: Proxy, client: redis.Redis, namespace: str) -> None:
    proxy.drop_reply(b"INCR", times=2)
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.incr(namespace)
    assert client.incr(namespace) == 3
    assert proxy.dropped == 2


def test_a_driver_that_repeats_on_its_own_does_the_work_twice(proxy: Proxy, redis_url: str, namespace: str) -> None:
    """The fault the proxy is for: what the application sees as one call, the server has seen twice."""
    with redis.Redis.from_url(proxy.url(redis_url), retry=Retry(NoBackoff(), 1)) as repeating:
        proxy.drop_reply(b"INCR")
        assert repeating.incr(namespace) == 2


def test_refuse_cuts_what_is_open_and_what_comes_until_accept(
    proxy: Proxy, client: redis.Redis, namespace: str
) -> None:
    client.set(namespace, 1)
    proxy.refuse()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.get(namespace)
    proxy.accept()
    assert client.get(namespace) == b"1"


def test_hang_answers_nothing_until_resume(
    proxy: Proxy, client: redis.Redis, direct: redis.Redis, namespace: str
) -> None:
    client.set(namespace, 1)
    proxy.hang()
    with pytest.raises(redis.TimeoutError):
        client.incr(namespace)
    proxy.resume()
    assert client.get(namespace) == b"1"
    assert direct.get(namespace) == b"1"


def test_a_server_that_is_gone_is_a_connection_error() -> None:
    once = Retry(NoBackoff(), 0)
    with Proxy("127.0.0.1", 1) as proxy, redis.Redis(port=proxy.port, retry=once) as client:
        assert not _answers(client)


def test_the_url_keeps_credentials_and_database() -> None:
    with Proxy("127.0.0.1", 1) as proxy:
        assert proxy.url("redis://me:secret@example:6379/3?a=b") == f"redis://me:secret@127.0.0.1:{proxy.port}/3?a=b"


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
