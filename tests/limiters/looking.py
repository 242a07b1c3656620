"""How the tests of limiters look at a resource."""


def available(limiter, resource="api"):
    return limiter.get_capacity(resource).available


def in_flight(limiter, resource="api"):
    return limiter.get_capacity(resource).in_flight


def waiting(limiter, resource="api"):
    """How many callers stand in line: the limiter does not say, its gate does."""
    known = limiter._resources.get(resource)
    return 0 if known is None else known.gate.waiting
