"""A client of a cluster whose servers are reached by other ports than the cluster tells.

Worker processes import it too, which do not find the other files of the tests.
"""

from redis.asyncio import RedisCluster


def client_through(ports):
    """Return a ready client. `ports` says by which port of this machine each server is reached."""
    ways = {str(port): way for port, way in ports.items()}
    return RedisCluster(
        host="127.0.0.1",
        port=next(iter(ways.values())),
        address_remap=lambda address: (address[0], ways.get(str(address[1]), address[1])),
    )
