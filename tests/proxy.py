"""A TCP proxy that misbehaves on request: it loses replies, cuts connections, or falls silent.

with Proxy("127.0.0.1", 6379) as proxy:
    proxy.drop_reply(b"EVALSHA")      # the server does the work, the client never hears of it
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from typing_extensions import Self

CHUNK = 65536
REPLY_SECONDS = 10.0
T = TypeVar("T")


class Proxy:
    """Forwards bytes between its clients and one server. Faults may be set from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self.dropped = 0
        self.port = 0
        self._server_address = (host, port)
        self._drops: list[bytes] = []
        self._refusing = False
        self._flowing = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    @classmethod
    def for_url(cls, url: str) -> Self:
        parts = urlsplit(url)
        assert parts.hostname, f"no host to stand in front of: {url}"
        assert parts.port, f"no port to stand in front of: {url}"
        return cls(parts.hostname, parts.port)

    def url(self, original: str) -> str:
        """The server's URL, through this proxy."""
        parts = urlsplit(original)
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{self.port}"))

    def drop_reply(self, match: bytes, times: int = 1) -> None:
        """The next requests that contain `match` reach the server; their replies are lost with the connection."""
        self._call(lambda: self._drops.extend([match] * times))

    def refuse(self) -> None:
        """Cut every connection and let no new one live, until `accept`."""
        self._call(self._start_refusing)

    def accept(self) -> None:
        self._call(lambda: setattr(self, "_refusing", False))

    def hang(self) -> None:
        """Take the clients' bytes but pass nothing on in either direction, until `resume`."""
        self._call(self._flowing.clear)

    def resume(self) -> None:
        self._call(self._flowing.set)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, change: Callable[[], object]) -> None:
        """Faults change in the loop's thread, and are in force when the caller goes on."""

        async def apply() -> None:
            change()

        self._run(apply())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(REPLY_SECONDS)

    async def _listen(self) -> None:
        self._flowing.set()
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._listener.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for connection in list(self._connections):
            connection.cut()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_refusing(self) -> None:
        self._refusing = True
        for connection in list(self._connections):
            connection.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._server_address)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, server_writer)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._forward_requests(reader, connection),
                self._forward_replies(server_reader, connection),
            )
        except OSError:
            pass
        finally:
            connection.cut()
            self._connections.discard(connection)

    async def _forward_requests(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        while request := await reader.read(CHUNK):
            if not self._flowing.is_set():
                await self._flowing.wait()
                if reader.at_eof():  # the client gave up: what it said into the silence never arrives
                    break
            connection.losing = connection.losing or self._is_to_be_lost(request)
            await connection.to_server(request)
        connection.end_requests()

    async def _forward_replies(self, server_reader: asyncio.StreamReader, connection: _Connection) -> None:
        while reply := await server_reader.read(CHUNK):
            await self._flowing.wait()
            if connection.losing:
                self.dropped += 1
                break
            await connection.to_client(reply)
        connection.cut()

    def _is_to_be_lost(self, request: bytes) -> bool:
        match = next((each for each in self._drops if each in request), None)
        if match is not None:
            self._drops.remove(match)
        return match is not None


class _Connection:
    """One client's connection and the one to the server made for it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.losing = False
        self._client = client
        self._server = server

    async def to_server(self, data: bytes) -> None:
        self._server.write(data)
        await self._server.drain()

    async def to_client(self, data: bytes) -> None:
        self._client.write(data)
        await self._client.drain()

    def end_requests(self) -> None:
        """Close towards the server once everything has been written; the replies end with it."""
        self._server.close()

    def cut(self) -> None:
        self._client.transport.abort()
        self._server.transport.abort()
