"""The document of the live page: what it says for each state of a gateway and of a store."""

from headgate.gateway.page.history import History
from headgate.gateway.page.view import gateway_document, store_document

SERIES = History().series(0.0)
RATE = {
    "name": "requests/minute",
    "unit": "requests",
    "limit": 120,
    "per": 60.0,
    "burst": 10,
    "level": 10,
}
GATE = {
    "key": "api.openai.com",
    "waiting": 0,
    "in_flight": 0,
    "concurrency": 400,
    "throttled_concurrency": None,
    "binding": None,
    "next_in": None,
    "rates": [RATE],
    "window": None,
    "tenants": [],
}
COUNTS = {"calls": 1, "waited": 0, "refused": 0, "hung_up": 0, "tokens": 0, "upstream_errors": {}}
STATE = {"url": "http://127.0.0.1:8429", "draining": False, "gates": [GATE], "errors": [], "counts": COUNTS}


def document(since=None, **gate):
    return gateway_document(STATE | {"gates": [GATE | gate]}, SERIES, {"api.openai.com": since})


def test_an_idle_gateway_says_that_nothing_waits():
    shown = document()
    assert (shown["state"], shown["sentence"]) == ("idle", "Nothing waits, and no call is in flight.")
    assert shown["totals"] == "1 call, 0 waited, 0 refused here, 0 refused or failed by the API"


def test_a_gateway_that_has_had_no_call_says_where_programs_reach_it():
    counts = COUNTS | {"calls": 0}
    shown = gateway_document(STATE | {"gates": [], "counts": counts}, SERIES, {})
    assert shown["sentence"] == "No call has come yet. Programs reach this gateway at http://127.0.0.1:8429."
    assert [line["value"] for line in shown["lines"]] == ["0/min", "0/min", "–", "0"]


def test_a_gateway_that_is_being_stopped_says_how_many_calls_still_wait():
    shown = gateway_document(STATE | {"draining": True, "gates": [GATE | {"waiting": 1}]}, SERIES, {})
    assert shown["state"] == "stopping"
    assert shown["sentence"] == "The gateway is being stopped. 1 call still waiting."


def test_the_totals_name_the_tokens_that_were_used():
    shown = gateway_document(STATE | {"counts": COUNTS | {"tokens": 12_345}}, SERIES, {})
    assert shown["totals"].endswith(", 12,345 tokens")


def test_a_gate_without_concurrency_shows_its_rates_only():
    shown = document(concurrency=None, in_flight=3)
    assert [row["name"] for row in shown["limits"]] == ["120 requests/minute"]
    assert (shown["lines"][3]["value"], shown["lines"][3]["cap"]) == ("3", None)
    assert document(concurrency=None, in_flight=None)["lines"][3]["value"] == "0"


def test_callers_that_hung_up_are_counted_apart():
    shown = gateway_document(STATE | {"counts": COUNTS | {"calls": 9, "hung_up": 3}}, SERIES, {})
    assert shown["totals"].startswith("9 calls, 0 waited, 0 refused here, 3 hung up while they waited, ")


def test_the_highest_value_of_a_line_is_that_of_its_points_and_not_its_cap():
    line = document(in_flight=2)["lines"][3]
    assert (line["value"], line["cap"], line["most"]) == ("2 of 400", 400, "most 0")


def test_in_a_window_no_limit_says_that_a_call_can_go_now():
    window = {"ends_in": 19.6, "since": 1.0, "reason": "rate_limited"}
    shown = document(window=window, in_flight=1, waiting=1)
    assert {row["next"] for row in shown["limits"]} == {"in 20 s"}
    assert "; 1 call waits; " in shown["sentence"]
    assert "; no call waits; " in document(window=window)["sentence"]


def test_a_busy_gateway_names_the_limit_that_is_used_most():
    shown = document(in_flight=2, rates=[RATE | {"level": 2}])
    assert shown["sentence"] == (
        "Nothing waits. 2 calls in flight; requests/minute of api.openai.com is used to 80%."
    )


def test_a_full_limit_is_named_with_since_when_how_many_wait_and_when_it_clears():
    shown = document(
        since=725.0, waiting=34, binding="requests/minute", next_in=1.72, rates=[RATE | {"level": 0}]
    )
    assert shown["sentence"] == (
        "requests/minute of api.openai.com has been full for 12:05; 34 calls wait; next in 1.8 s; "
        "clear in about 17 s."
    )
    first = shown["limits"][0]
    assert first["binding"]
    assert (first["name"], first["used"], first["next"], first["since"]) == (
        "120 requests/minute",
        "0 of 10 left now",
        "in 1.8 s",
        "for 12:05",
    )


def test_the_limit_that_holds_calls_back_comes_first_and_then_the_fullest():
    tokens = {**RATE, "name": "tokens/minute", "unit": "tokens", "level": 1}
    shown = document(waiting=1, binding="concurrency", in_flight=400, rates=[RATE, tokens])
    assert [row["name"] for row in shown["limits"]] == [
        "calls in flight",
        "120 tokens/minute",
        "120 requests/minute",
    ]
    assert shown["limits"][0]["next"] == "when a call ends"


def test_a_window_is_named_with_its_reason_and_its_end():
    window = {"ends_in": 19.2, "since": 1.0, "reason": "rate_limited"}
    shown = document(waiting=51, binding="window", window=window)
    assert shown["state"] == "window"
    assert shown["sentence"] == (
        "api.openai.com asked us to wait (rate limited) 1 s ago; 51 calls wait; calls go again in 20 s."
    )
    assert shown["windows"] == [
        {"gate": "api.openai.com", "reason": "rate limited", "since": "1 s ago", "ends": "in 20 s"}
    ]
    assert shown["limits"][0]["next"] == "in 20 s"


def test_callers_are_listed_by_tenant_with_what_they_wait_for():
    tenants = [{"tenant": "ann", "waiting": 3, "longest": 0.25}]
    shown = document(waiting=3, binding="requests/minute", tenants=tenants)
    assert shown["waiting"] == [
        {
            "tenant": "ann",
            "calls": "3",
            "longest": "250 ms",
            "for": "requests/minute",
            "gate": "api.openai.com",
        }
    ]


def test_errors_are_listed_in_the_words_of_the_api():
    errors = [{"at": 61.0, "gate": "api.openai.com", "status": 429, "message": "Limit 120"}]
    shown = gateway_document(STATE | {"errors": errors}, SERIES, {})
    assert shown["errors"] == [
        {"when": "1:01 ago", "status": "429", "words": "Limit 120", "gate": "api.openai.com"}
    ]


POOL = {
    "rates": [RATE | {"next": 0.0}],
    "window": 0.0,
    "throttled": 0.0,
    "places": {"held": 0, "limit": 400, "usual_limit": 400},
    "bytes": {"held": 0, "limit": None},
    "members": [],
    "waits": [],
}
LINES = {name: [0.0, 0.0] for name in ("in_flight", "waiting", "members", "windows")}


def store(**pool):
    return store_document({"store": "sqlite", "error": None, "pools": {"api": POOL | pool}}, LINES)


def test_a_store_without_pools_says_so():
    shown = store_document({"store": "sqlite", "error": None, "pools": {}}, LINES)
    assert shown["sentence"] == "No process shares a limit in this store."


def test_a_store_that_cannot_be_read_says_why():
    shown = store_document({"store": "sqlite", "error": "no answer", "pools": {}}, LINES)
    assert (shown["state"], shown["sentence"]) == ("window", "The store cannot be read: no answer")


def test_the_processes_of_a_store_are_listed_with_what_they_wait_for():
    member = {"name": "host 12", "in_flight": 2, "waiting": 5, "places": 4, "bytes": 0, "lease": 2.5}
    shown = store(members=[member], waits=["requests/minute: next in 0.4 s"])
    assert shown["sentence"] == "5 calls of api waiting. requests/minute: next in 0.4 s."
    assert shown["members"] == [
        {
            "member": "host 12",
            "flight": "2",
            "waits": "5",
            "places": "4",
            "lease": "2.5 s",
            "gate": "api",
        }
    ]


def test_a_window_of_a_store_is_shown_with_its_end():
    shown = store(window=3.0)
    assert shown["state"] == "window"
    assert shown["windows"][0]["ends"] == "in 3.0 s"


def test_a_store_says_how_many_calls_of_its_processes_are_in_flight_while_none_waits():
    member = {"name": "host 12", "in_flight": 2, "waiting": 0, "places": 4, "bytes": 0, "lease": 0.0}
    shown = store(members=[member])
    assert (shown["state"], shown["sentence"]) == ("busy", "Nothing waits. 2 calls in flight.")
    assert shown["waiting"] == []
    assert shown["members"][0]["lease"] == "over"
    assert store()["sentence"] == "Nothing waits, and no call is in flight."
