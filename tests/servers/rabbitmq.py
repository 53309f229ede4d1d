"""RabbitMQ: a virtual host of our own on the one that runs, or a node of our own from PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import kombu
from typing_extensions import Self

from tests.servers.process import Folder, NoServer, Process, accepts_connections, free_port

USUAL_URL = "amqp://guest:guest@127.0.0.1:5672/%2F"
# Debian's commands on PATH are wrappers that insist on the user `rabbitmq`; the real ones are here.
DEBIAN_BIN = Path("/usr/lib/rabbitmq/bin")
CONTROL_SECONDS = 30


def rabbitmq_answers(url: str) -> bool:
    """Whether an AMQP server lets us in; a listening port alone says nothing."""
    try:
        with kombu.Connection(url, connect_timeout=3) as connection:
            connection.connect()
            return bool(connection.connected)
    except (OSError, *kombu.Connection(url).connection_errors):
        return False


def delete_queues(url: str, names: list[str]) -> None:
    """Deleting a queue that does not exist is no error in RabbitMQ."""
    with kombu.Connection(url) as connection, connection.channel() as channel:
        for name in names:
            channel.queue_delete(name)


class RabbitMQ:
    """A server somebody else runs. With `rabbitmqctl` at hand the tests get a virtual host of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._vhost: str | None = None

    def enter_own_vhost(self) -> Self:
        vhost = f"task-contract-{uuid.uuid4().hex[:8]}"
        if not control("add_vhost", vhost):
            return self
        self._vhost = vhost
        user = urlsplit(self.url).username or "guest"
        url = _with_vhost(self.url, vhost)
        if control("set_permissions", "-p", vhost, user, ".*", ".*", ".*") and rabbitmq_answers(url):
            self.url = url
        return self

    def close(self) -> None:
        if self._vhost is not None:
            control("delete_vhost", self._vhost)


def control(*arguments: str) -> bool:
    """rabbitmqctl, if it is there and we are allowed to use it."""
    command = shutil.which("rabbitmqctl")
    if command is None:
        return False
    try:
        done = subprocess.run(
            [command, "--quiet", *arguments], capture_output=True, check=False, timeout=CONTROL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _with_vhost(url: str, vhost: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path="/" + quote(vhost, safe="")))


class PrivateRabbitMQ:
    """A node of our own: its own port, folder, cookie and name server, so that it leaves nothing behind."""

    def __init__(self) -> None:
        server, epmd = _server_executable(), shutil.which("epmd")
        if epmd is None:
            raise NoServer("rabbitmq-server is there, but Erlang's epmd is not on PATH")
        self._folder = Folder("rabbitmq")
        self.port, self._names_port = free_port(), free_port()
        environment = self._environment()
        self._names = Process([epmd, "-port", str(self._names_port)], folder=self._folder.path, environment=environment)
        self._process = Process([server], folder=self._folder.path, environment=environment)

    def _environment(self) -> Mapping[str, str]:
        folder = str(self._folder.path)
        return {
            "HOME": folder,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._names_port),
            "RABBITMQ_NODENAME": f"task-contract-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_BASE": folder,
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def start(self) -> Self:
        self._names.start(ready=lambda: accepts_connections(self._names_port))
        self._process.start(ready=lambda: accepts_connections(self.port) and rabbitmq_answers(self.url))
        return self

    def close(self) -> None:
        self._process.stop()
        self._names.stop()
        self._folder.remove()


def _server_executable() -> str:
    found = shutil.which("rabbitmq-server", path=f"{DEBIAN_BIN}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise NoServer("none on port 5672 and no rabbitmq-server on PATH")
    return found
