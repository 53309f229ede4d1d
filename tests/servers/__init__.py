"""The servers of a test run: named by the environment, found on the usual port, or private ones of our own.

Nothing starts before a test asks for it, and whatever was started is stopped when the run ends.
"""

from tests.servers.process import NoServer
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import PrivateRedis, RedisCluster, RedisSentinel
from tests.servers.run import Server, Servers

__all__ = ["NoServer", "PrivateRedis", "RabbitMQ", "RedisCluster", "RedisSentinel", "Server", "Servers"]
