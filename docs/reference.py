"""What the reference shows: every public name on one page, as users import it.

`docs/make_site.py` writes the pages from this, and `tests/test_reference.py` checks that no public name is
left out, that each has a docstring and an example, and that the lists here name what exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Page:
    """One page: names by the module from which users import them."""

    file: str
    title: str
    about: str
    names: dict[str, str] = field(default_factory=dict)  # module -> names

    def entries(self) -> list[tuple[str, str]]:
        return [(module, name) for module, names in self.names.items() for name in names.split()]


PAGES = [
    Page(
        "gates",
        "Gates",
        "What callers wait at. The guide is [Dispatch](../dispatch.md), with a table of "
        "[all arguments](../dispatch.md#all-arguments-of-dispatch).",
        {
            "headgate": (
                "Dispatch Admission Permit Rate DispatchSnapshot RateLevel Totals call_options "
                "FirstFree map map_async "
                "BackoffWindow WindowRegistry publish observe_all parse_retry_after"
            ),
            "headgate.verdict": "Verdict throttled overloaded failed SUCCEEDED REJECTED EXHAUSTED",
        },
    ),
    Page(
        "limiters",
        "Limiters",
        "A rate for one function, for a million users, or for a swarm of agents. The guides are "
        "[Limiters](../limiters.md) and [Swarms](../swarm.md).",
        {"headgate": "RateLimiter MemoryLimiter Acquisition Capacity DistributedLimiter CapacityUpdate"},
    ),
    Page(
        "resilience",
        "Retries, breakers and budgets",
        "The guides are [Retrying](../retrying.md) with a table of [its options](../retrying.md#options), "
        "[Circuit breaker](../circuit-breaker.md), [Budgets](../budgets.md) and "
        "[ResilientClient](../resilient-client.md) with a table of "
        "[its config](../resilient-client.md#the-config).",
        {
            "headgate": (
                "retry retrying retry_with_backoff retry_with_backoff_async RetryBudget Backoff "
                "CircuitBreaker CircuitState "
                "BreakerRegistry TokenBudget BudgetBook Reservation Prices "
                "ResilientClient ResilienceConfig"
            )
        },
    ),
    Page(
        "errors",
        "Errors",
        "What each means, and what to do about it, is in [the guide](../errors.md).",
        {
            "headgate": (
                "HeadgateError InvalidLimit InvalidCapacity InvalidWindow InvalidConfig "
                "UnknownResource UnknownName Refused "
                "WaitTimeout LineFull CostTooLarge CapacityExhausted CircuitBreakerOpen "
                "BudgetExceeded Closed StoreError"
            )
        },
    ),
    Page(
        "http",
        "HTTP clients and frameworks",
        "Each module needs its library. The guides are [HTTP](../http.md) and "
        "[Frameworks](../integrations.md).",
        {
            "headgate.http.httpx": "client async_client Transport AsyncTransport",
            "headgate.http.aiohttp": "middleware",
            "headgate.http.requests": "Adapter",
            "headgate.http.anthropic": "middleware middleware_async",
            "headgate.http.boto3": "obey",
            "headgate.http.exchange": "SendOptions",
            "headgate.http": (
                "per_host per_model per_credential read_signal refusal_of Signal Scope Request Target"
            ),
            "headgate.integrations.fastapi": "admit",
            "headgate.integrations.asgi": "RateLimit by_client by_header",
            "headgate.integrations.scrapy": "GateMiddleware",
            "headgate.integrations.gateway": "gateway_headers tell_gateway",
            "headgate.tenacity": (
                "wait_for_window wait_retry_after wait_backoff stop_when_open retry_if_transient"
            ),
        },
    ),
    Page(
        "gateway",
        "A gateway in a program",
        "What `headgate serve` starts, on an event loop of your own. It needs `headgate[gateway]`. The guide "
        "is [Gateway](../gateway.md#options).",
        {
            "headgate.gateway.app": "Gateway",
            "headgate.gateway.settings": "Settings",
            "headgate.gateway.upstreams": "Upstream upstream",
        },
    ),
    Page(
        "events",
        "Events and observers",
        "What an observer is told. The guides are [Events](../events.md) and "
        "[Observability](../observability.md).",
        {
            "headgate.observers": "prometheus opentelemetry logs together",
            "headgate.events": (
                "Event Waiting LongWait Admitted Cancelled Refused Settled ResponseObserved Retuned "
                "WindowEvent WindowSet "
                "WindowExtended WindowCleared WindowEnded Retrying CircuitEvent CircuitOpened "
                "CircuitProbing CircuitClosed "
                "StoreAsked StoreLost StoreRegained StoreForgot CapacityReduced CapacityChanged "
                "UpdateIgnored DuplicateAgent "
                "BusLost BusRegained"
            ),
        },
    ),
    Page(
        "testing",
        "Testing and the sandbox",
        "The guides are [Testing](../testing.md) and [Sandbox](../sandbox.md), with tables of the kinds of "
        "[faults](../sandbox.md#faults) and of what [the report](../sandbox.md#the-report) has.",
        {
            "headgate.testing": "ManualClock Recorder run MemoryStore UnreliableBus",
            "headgate.sandbox": "Sandbox FakeProvider Provider Fault Reply Report serve",
        },
    ),
    Page(
        "typing",
        "Types",
        "For annotations of your own code.",
        {"headgate.typing": "Clock Timer Store Bus RedisClient Rates Seconds Jitter Observer AnyStore"},
    ),
]

# Methods that other rooms of headgate call. They have no underscore, because no room reaches into private
# names, and they are not for users.
_OF_GATES = (
    "abandon after_fork at_full_length callers change check_may_block claim close_if demand detach "
    "follow_observers follow_rules give_back grant hear_window is_idle join largest_cost learn leave "
    "look look_again note_interrupt pauses recover retune ring set_rate_rules settle share take "
    "tell_admitted tell_left tell_retuned ticket told totals"
)
INNER = {
    "headgate.Backoff": "delay_ns",
    "headgate.BackoffWindow": "hear identify notice_end reentry signal watch",
    "headgate.CircuitBreaker": (
        "abandoned after_fork apply begin come_out enter failed go_in ignored is_idle keep_in share succeeded"
    ),
    "headgate.Dispatch": _OF_GATES,
    "headgate.DistributedLimiter": "after_fork follow_observers",
    "headgate.FirstFree": "order took among",
    "headgate.MemoryLimiter": "after_fork follow_observers",
    "headgate.Permit": "leave cost generation mode taken_at ticket wait_ns",
    "headgate.Rate": "of_ns most_debt",
    "headgate.RateLimiter": "after_fork follow_observers",
    "headgate.ResilienceConfig": "rates",
    "headgate.RetryBudget": "after_fork begin_attempt checked earn end_attempt refund spend",
    "headgate.TokenBudget": "remember",
    "headgate.WindowRegistry": "after_fork keep let_go",
    "headgate.testing.ManualClock": "loop_parker thread_parker quantum",
    "headgate.testing.MemoryStore": "after_fork ask close keys listen look swap unlisten",
    "headgate.testing.UnreliableBus": "send subscribe",
    "headgate.sandbox.FakeProvider": "control on_clock open",
    "headgate.sandbox.Sandbox": "control on_clock open",
    "headgate.sandbox.Fault": "pause written",
    "headgate.sandbox.Provider": "account anchor catch_up open",
    "headgate.http.Scope": "count index",
    "headgate.http.Signal": "count index",
    "headgate.http.httpx.Transport": "close handle_request",
    "headgate.http.httpx.AsyncTransport": "aclose handle_async_request",
    "headgate.http.requests.Adapter": "send",
    "headgate.gateway.app.Gateway": "count_tokens note_error",
    "headgate.integrations.scrapy.GateMiddleware": (
        "from_crawler process_exception process_request process_response"
    ),
}

# Public names without an example of their own, each with the reason.
_AN_ERROR = "an error: the guide to errors shows when it is raised"
_AN_EVENT = "an event: an example of Recorder shows how events are read"
_OPTIONS = "options that other names take"
_A_PROTOCOL = "a protocol: what implements it has the examples"
_A_VALUE = "a value: an example of `failed` shows how verdicts are given"
WITHOUT_EXAMPLE = {
    "headgate.http.exchange.SendOptions": _OPTIONS,
    "headgate.integrations.scrapy.GateMiddleware": "Scrapy makes it: the guide to frameworks has settings",
    **{f"headgate.verdict.{name}": _A_VALUE for name in ("Verdict", "SUCCEEDED", "REJECTED", "EXHAUSTED")},
    **{
        f"{module}.{name}": _AN_ERROR
        for page in PAGES
        if page.file == "errors"
        for module, name in page.entries()
    },
    **{
        f"{module}.{name}": _AN_EVENT
        for page in PAGES
        if page.file == "events"
        for module, name in page.entries()
        if module == "headgate.events"
    },
    **dict.fromkeys(
        (f"headgate.typing.{name}" for name in ("Clock", "Timer", "Store", "Bus", "RedisClient")), _A_PROTOCOL
    ),
}
