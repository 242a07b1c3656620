"""Dispatches with one kind of limit, for tests that are about that kind."""

from headgate import Dispatch


def only_places(n, **more):
    return Dispatch("places", concurrency=n, throttled_concurrency=None, byte_budget=None, **more)


def only_rates(rates, **more):
    return Dispatch(
        "rates", concurrency=None, throttled_concurrency=None, byte_budget=None, rates=rates, **more
    )
