"""call_options: what a block says about its calls reaches adapters and clients, and only inside the block."""

import asyncio
import contextvars
import gzip
import json
import sys
import threading
from datetime import timedelta

import pytest

from far_side import BODY, URL, AsyncReply, FarSide, Reply, World, levels
from headgate import (
    Backoff,
    BudgetBook,
    BudgetExceeded,
    Dispatch,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    Prices,
    ResilienceConfig,
    ResilientClient,
    TokenBudget,
    UnknownName,
    WaitTimeout,
    call_options,
)
from headgate.dispatch.options import current_options
from headgate.events import Admitted
from headgate.http.exchange import GatedSender
from headgate.testing import ManualClock, Recorder

USED = b'{"usage": {"input_tokens": 30, "output_tokens": 12}}'


@pytest.fixture(params=["sync", "async"])
def world(request):
    return World(request.param)


# -- the block


def test_without_a_block_there_are_no_options():
    assert current_options() is None
    with call_options(tenant="ann"):
        pass
    assert current_options() is None


def test_a_block_inside_another_adds_to_it_and_may_end_an_option():
    with call_options(tenant="ann", priority=5, timeout=2, cost=3):
        with call_options(priority=1, timeout=None):
            inner = current_options()
        assert (inner.tenant, inner.priority, inner.timeout, inner.cost) == ("ann", 1, None, 3)
        assert current_options().timeout == 2
    assert current_options() is None


def test_a_block_ends_also_by_an_exception():
    with pytest.raises(KeyError), call_options(tenant="ann"):
        raise KeyError
    assert current_options() is None


def test_a_decorated_function_runs_inside_the_block_also_when_it_calls_itself():
    seen = []

    @call_options(tenant="ann")
    def count(n):
        seen.append(current_options().tenant)
        return count(n - 1) if n else "done"

    @call_options(tenant="bob")
    async def wait():
        await asyncio.sleep(0)
        return current_options().tenant

    assert count(2) == "done"
    assert seen == ["ann"] * 3
    assert asyncio.run(wait()) == "bob"
    assert current_options() is None


def test_one_block_may_be_entered_by_tasks_at_the_same_time():
    block = call_options(tenant="ann")

    async def use(order):
        with call_options(priority=order), block:
            await asyncio.sleep(0.001 * (3 - order))
            return current_options().tenant, current_options().priority

    async def main():
        return await asyncio.gather(*(use(order) for order in range(3)))

    assert asyncio.run(main()) == [("ann", 0), ("ann", 1), ("ann", 2)]


def test_a_generator_that_is_closed_in_another_context_changes_nothing_there():
    def generate():
        with call_options(tenant="ann"):
            yield current_options().tenant

    generator = generate()
    assert contextvars.copy_context().run(next, generator) == "ann"
    assert current_options() is None
    generator.close()
    assert current_options() is None


def test_a_block_that_ends_before_the_block_inside_it_ends_both():
    outer, inner = call_options(tenant="ann"), call_options(priority=3)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__()
    assert current_options() is None
    inner.__exit__()
    assert current_options() is None


def test_tasks_and_asyncio_to_thread_take_the_options_along_and_plain_threads_do_not():
    async def main():
        with call_options(tenant="ann"):
            task = asyncio.create_task(asyncio.to_thread(current_options))
        return await task

    assert asyncio.run(main()).tenant == "ann"
    seen = []
    with call_options(tenant="ann"):
        thread = threading.Thread(target=lambda: seen.append(current_options()))
        thread.start()
        thread.join()
    # A Python without the global lock hands the context to threads.
    assert seen[0] is None or sys.flags.thread_inherit_context


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"tenant": ["ann"]}, InvalidConfig, "not hashable"),
        ({"priority": 1.5}, InvalidConfig, "whole number"),
        ({"priority": None}, InvalidConfig, "whole number"),
        ({"timeout": -1}, InvalidLimit, "timeout=-1"),
        ({"budget": 5_000}, InvalidConfig, "is not a TokenBudget"),
        ({"budget": TokenBudget(limits="$5/day")}, InvalidConfig, "write prices=Prices.shipped"),
        (
            {"budget": TokenBudget(limits=["$5/day", "9 tokens/day"])},
            InvalidConfig,
            "by the price of its model",
        ),
        ({"budget": TokenBudget(None, None)}, InvalidConfig, "limits neither tokens nor money"),
        ({"cost": "much"}, InvalidCapacity, "neither a whole number nor units"),
        ({"cost": {"tokens": -1}}, InvalidCapacity, "negative"),
        ({"cost": True}, InvalidCapacity, "whole number"),
    ],
)
def test_an_option_that_cannot_work_is_refused_where_it_is_written(options, error, why):
    with pytest.raises(error, match=why):
        call_options(**options)


def test_generators_cannot_be_decorated():
    def stream():
        yield 1

    with pytest.raises(InvalidConfig, match="is a generator"):
        call_options(tenant="ann")(stream)


# -- adapters


def test_adapters_admit_by_tenant_priority_and_cost(world):
    gate = world.gate("10 requests/minute burst 10", "1000 tokens/minute burst 1000", "9 images/day burst 9")
    with call_options(tenant="ann", priority=7, cost={"requests": 2, "images": 4, "pages": 1}):
        world.ask(GatedSender(gate), FarSide(world.clock, Reply(body=USED)))
    admitted = [event for event in world.seen.events if isinstance(event, Admitted)]
    assert [event.tenant for event in admitted] == ["ann"]
    assert levels(gate) == {"requests": 8, "tokens": 900, "images": 5}


def test_a_stated_cost_replaces_the_estimate_of_the_adapter_and_of_its_function(world):
    gate = world.gate("1000 tokens/day burst 1000")
    sender = GatedSender(gate, estimate=lambda request: 900)
    with call_options(cost={"tokens": 100}):
        world.ask(sender, FarSide(world.clock, Reply(500)))
    assert levels(gate) == {"tokens": 900}
    world.ask(sender, FarSide(world.clock, Reply(500)))
    assert levels(gate) == {"tokens": 0}


def test_the_time_out_of_a_block_replaces_that_of_the_adapter(world):
    gate = world.gate("1/minute burst 1")
    gate.try_admit().settle()
    sender, far_side = GatedSender(gate, timeout=600), FarSide(world.clock, Reply())
    with pytest.raises(WaitTimeout), call_options(timeout=timedelta(seconds=30)):
        world.ask(sender, far_side)
    assert world.ask(sender, far_side).status == 200
    assert far_side.asked_at == [60.0]


def test_a_higher_priority_goes_first_through_an_adapter():
    clock, seen = ManualClock(auto_advance=True), []
    world = World("async")
    world.clock = clock
    gate = world.gate("1/minute burst 1")
    sender = GatedSender(gate)

    async def ask(name, priority):
        async def send():
            seen.append(name)
            return Answered()

        with call_options(priority=priority):
            await sender.run_async("GET", "http://api.example/", {}, None, send)

    class Answered(Reply):
        async def read_error(self):
            return b""

    async def main():
        gate.try_admit().settle()
        await asyncio.gather(ask("low", -1), ask("middle", 0), ask("high", 1))

    asyncio.run(main())
    assert seen == ["high", "middle", "low"]


# -- budgets


def test_an_adapter_charges_the_budget_what_the_response_says(world):
    budget = TokenBudget(10_000, clock=world.clock)
    with call_options(budget=budget):
        world.ask(GatedSender(world.gate()), FarSide(world.clock, Reply(body=USED)))
    assert budget.remaining_budget == 10_000 - 42


def test_a_stream_holds_its_estimate_until_it_is_read(world):
    budget = TokenBudget(10_000, clock=world.clock)
    with call_options(budget=budget, cost={"tokens": 500}):
        reply = world.ask(GatedSender(world.gate()), FarSide(world.clock, Reply(stream=True)))
    assert budget.remaining_budget == 9_500
    reply.reading.chunk(USED)
    reply.reading.end(whole=True)
    assert budget.remaining_budget == 10_000 - 42


@pytest.mark.parametrize(
    ("outcome", "charged"),
    [
        (Reply(400), 0),
        (Reply(429), 0),
        (Reply(500), 500),
        (TimeoutError(), 500),
        (ConnectionRefusedError(), 0),
    ],
    ids=["400", "429", "500", "time-out", "not connected"],
)
def test_what_a_failed_call_costs_the_budget(world, outcome, charged):
    budget = TokenBudget(10_000, clock=world.clock)
    with call_options(budget=budget, cost={"tokens": 500}):
        if isinstance(outcome, Exception):
            with pytest.raises(type(outcome)):
                world.ask(GatedSender(world.gate()), FarSide(world.clock, outcome))
        else:
            world.ask(GatedSender(world.gate()), FarSide(world.clock, outcome))
    assert budget.remaining_budget == 10_000 - charged


def test_each_retry_is_charged_as_a_call_of_its_own(world):
    budget = TokenBudget(10_000, clock=world.clock)
    far_side = FarSide(world.clock, Reply(429, retry_after=1), Reply(529), Reply(body=USED))
    with call_options(budget=budget):
        world.ask(GatedSender(world.gate(), retries=3), far_side)
    assert len(far_side.asked_at) == 3
    assert budget.remaining_budget == 10_000 - 42


def test_a_budget_that_is_used_up_refuses_before_anything_is_sent(world):
    budget, far_side = TokenBudget(10, clock=world.clock), FarSide(world.clock, Reply())
    gate = world.gate("9/minute burst 9")
    with pytest.raises(BudgetExceeded), call_options(budget=budget):
        world.ask(GatedSender(gate), far_side)
    assert far_side.asked_at == []
    assert levels(gate) == {"requests": 9}


def test_a_refusal_of_the_gate_gives_the_budget_back(world):
    budget, gate = TokenBudget(10_000, clock=world.clock), world.gate()
    gate.close()
    with pytest.raises(Exception, match="closed"), call_options(budget=budget):
        world.ask(GatedSender(gate), FarSide(world.clock, Reply()))
    assert budget.remaining_budget == 10_000


@pytest.mark.parametrize("outcome", [Reply(500), TimeoutError()], ids=["500", "time-out"])
def test_a_retry_that_the_budget_refuses_gives_nothing_of_the_attempt_before_it_back(world, outcome):
    """The first attempt was sent and may have been billed."""
    budget, far_side = TokenBudget(900, clock=world.clock), FarSide(world.clock, outcome)
    sender = GatedSender(world.gate(), retries=3)
    for _ in range(2):
        with pytest.raises(BudgetExceeded), call_options(budget=budget, cost={"tokens": 500}):
            world.ask(sender, far_side)
        assert budget.remaining_budget == 400
    assert len(far_side.asked_at) == 1


def test_what_is_left_of_the_money_says_how_often_a_call_can_still_be_sent(world):
    """Ten calls of up to $3 each are made, and $5 are there: one attempt is sent."""
    prices = Prices({"m": (0.0, 30.0)}, currency="USD")
    budget = TokenBudget(limits="$5/calendar day", prices=prices, clock=world.clock)
    far_side, sender = FarSide(world.clock, TimeoutError()), GatedSender(world.gate(), retries=1)
    body = json.dumps({"model": "m", "max_tokens": 100_000, "messages": []}).encode()
    for _ in range(10):
        with pytest.raises(BudgetExceeded), call_options(budget=budget):
            world.ask(sender, far_side, body=body)
    assert len(far_side.asked_at) == 1
    assert budget.remaining_money == 2_000_000


def test_a_retry_that_is_cancelled_in_the_line_gives_back_what_it_reserved_and_no_more():
    clock = ManualClock()
    budget, far_side = TokenBudget(10_000, clock=clock), FarSide(clock, Reply(500))
    sender = GatedSender(Dispatch("api", rates="1/hour", clock=clock), retries=1, backoff=Backoff(1, cap=1))

    async def send():
        return AsyncReply(far_side.send())

    async def main():
        with call_options(budget=budget, cost={"tokens": 500}):
            asking = asyncio.create_task(sender.run_async("POST", URL, {}, BODY, send))
        await settled()
        assert budget.remaining_budget == 9_500
        clock.advance(1)
        await settled()
        assert budget.remaining_budget == 9_000
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(main())
    assert len(far_side.asked_at) == 1
    assert budget.remaining_budget == 9_500


async def settled():
    """The tasks have done what they can do at this time."""
    for _ in range(20):
        await asyncio.sleep(0)


# -- budgets of money

# For "m", a token of the input costs 2 millionths, one of the answer 10, and one from the cache half of one.
PRICES = Prices({"m": (2.0, 10.0, 0.5)}, currency="USD")
CACHED = json.dumps(
    {"usage": {"input_tokens": 30, "cache_read_input_tokens": 100, "output_tokens": 12}}
).encode()

IN_THE_INPUT = json.dumps(
    {
        "usage": {
            "prompt_tokens": 30,
            "prompt_tokens_details": {"cached_tokens": 20},
            "completion_tokens": 12,
        }
    }
).encode()
ALL_OF_IT = json.dumps(
    {"usageMetadata": {"promptTokenCount": 30, "cachedContentTokenCount": 30, "candidatesTokenCount": 12}}
).encode()


def priced(world, *limits, **options):
    return TokenBudget(limits=limits or "$5/day", prices=PRICES, clock=world.clock, **options)


@pytest.mark.parametrize(
    ("used", "cost"),
    [
        (USED, 30 * 2 + 12 * 10),
        (CACHED, 30 * 2 + 100 // 2 + 12 * 10),
        (IN_THE_INPUT, 10 * 2 + 20 // 2 + 12 * 10),
        (ALL_OF_IT, 30 // 2 + 12 * 10),
    ],
    ids=["no cache", "beside the input", "in the input", "all of the input"],
)
def test_an_adapter_charges_the_price_of_what_the_response_says(world, used, cost):
    budget = priced(world, "$5/day", "10_000 tokens/hour")
    with call_options(budget=budget):
        world.ask(GatedSender(world.gate()), FarSide(world.clock, Reply(body=used)))
    assert budget.remaining_money == 5_000_000 - cost
    assert budget.remaining_budget == 10_000 - 42


def test_the_estimate_is_the_input_and_the_longest_answer_and_holds_until_the_stream_is_read(world):
    budget = priced(world)
    with call_options(budget=budget):
        reply = world.ask(GatedSender(world.gate()), FarSide(world.clock, Reply(stream=True)))
    reserved = 5_000_000 - budget.remaining_money
    assert 100 * 10 < reserved < 100 * 10 + 100 * 2  # max_tokens is 100
    reply.reading.chunk(USED)
    reply.reading.end(whole=True)
    assert budget.remaining_money == 5_000_000 - 180


def test_a_stated_cost_is_reserved_as_if_all_of_it_were_of_the_dearer_kind(world):
    budget = priced(world)
    with call_options(budget=budget, cost={"tokens": 70}):
        world.ask(GatedSender(world.gate()), FarSide(world.clock, Reply(500)))
    assert budget.remaining_money == 5_000_000 - 700


@pytest.mark.parametrize(("status", "charged"), [(400, False), (429, False), (500, True)])
def test_what_a_failed_call_costs_a_budget_of_money(world, status, charged):
    budget = priced(world)
    with call_options(budget=budget):
        world.ask(GatedSender(world.gate()), FarSide(world.clock, Reply(status)))
    assert (budget.remaining_money < 5_000_000) == charged


def test_money_that_is_used_up_refuses_before_anything_is_sent(world):
    budget, far_side = priced(world, "$0.001/calendar day"), FarSide(world.clock, Reply())
    with pytest.raises(BudgetExceeded) as caught, call_options(budget=budget):
        world.ask(GatedSender(world.gate()), far_side)
    assert caught.value.rule == "money/calendar day"
    assert far_side.asked_at == []


@pytest.mark.parametrize("model", ["other", None])
def test_a_model_without_a_price_is_refused_before_anything_is_sent(world, model):
    budget, far_side, gate = priced(world), FarSide(world.clock, Reply()), world.gate("9/minute burst 9")
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    with pytest.raises(UnknownName, match="no price is known"), call_options(budget=budget):
        world.ask(GatedSender(gate, retries=3), far_side, body=body)
    assert far_side.asked_at == []
    assert budget.remaining_money == 5_000_000
    assert levels(gate) == {"requests": 9}


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("GET", "https://api.example/v1/models", None),
        ("POST", "https://api.example/v1/vector_stores", b'{"name": "texts"}'),
        ("POST", "https://api.example/v1/messages/count_tokens", b'{"model": "other", "messages": []}'),
    ],
)
def test_requests_that_call_no_model_cost_no_money(world, method, url, body):
    budget = priced(world)
    with call_options(budget=budget):
        world.ask(GatedSender(world.gate()), FarSide(world.clock, Reply()), url=url, body=body, method=method)
    assert budget.remaining_money == 5_000_000


ANSWER = {"model": "m-2026-08-01", "usage": {"input_tokens": 30, "output_tokens": 12}}
UNREADABLE = [
    (None, {"transfer-encoding": "chunked"}),
    (gzip.compress(BODY), {"content-encoding": "gzip"}),
    (b'{"prompt": {"id": "p_1"}}', {}),  # which names the model at the provider
]


@pytest.mark.parametrize(("body", "headers"), UNREADABLE, ids=["streamed", "gzip", "stored prompt"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_whose_request_names_no_model_costs_what_the_model_of_its_response_costs(
    world, body, headers, stream
):
    budget, text = priced(world, "$5/day", "10_000 tokens/hour"), json.dumps(ANSWER).encode()
    if stream:
        done = json.dumps({"type": "response.completed", "response": ANSWER}).encode()
        reply = Reply(body=b"data: " + done + b"\n\n", content_type="text/event-stream")
    else:
        reply = Reply(body=text)
    url = "https://api.example/v1/responses"
    with call_options(budget=budget):
        world.ask(GatedSender(world.gate()), FarSide(world.clock, reply), url=url, body=body, headers=headers)
    assert budget.remaining_money == 5_000_000 - 180
    assert budget.remaining_budget == 10_000 - 42


def test_a_request_with_a_byte_order_mark_is_charged_before_it_is_sent(world):
    budget = priced(world)
    with call_options(budget=budget):
        world.ask(
            GatedSender(world.gate()), FarSide(world.clock, Reply(stream=True)), body=b"\xef\xbb\xbf" + BODY
        )
    assert budget.remaining_money < 5_000_000 - 100 * 10


def test_a_response_of_a_model_without_a_price_costs_as_the_dearest_of_the_list(world):
    prices = Prices({"m": (2.0, 10.0), "small": (1.0, 1.0)}, currency="USD")
    budget = TokenBudget(limits="$5/day", prices=prices, clock=world.clock)
    reply = Reply(body=json.dumps({**ANSWER, "model": "other"}).encode())
    with call_options(budget=budget):
        world.ask(GatedSender(world.gate()), FarSide(world.clock, reply), body=None)
    assert budget.remaining_money == 5_000_000 - 180


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        ("POST", Reply(body=USED)),
        ("POST", Reply(body=b'{"model": "m"}')),
        ("GET", Reply(body=json.dumps(ANSWER).encode())),  # of a response that was stored before
    ],
    ids=["no model", "no usage", "a stored response"],
)
def test_a_call_costs_no_money_if_neither_request_nor_response_says_what_to_pay(world, method, reply):
    budget = priced(world)
    with call_options(budget=budget):
        world.ask(GatedSender(world.gate()), FarSide(world.clock, reply), body=None, method=method)
    assert budget.remaining_money == 5_000_000


def test_a_budget_takes_the_prices_of_the_budget_above_it_and_of_its_book(world):
    team = TokenBudget(limits="$9/day", key="team", prices=PRICES, clock=world.clock)
    ann = TokenBudget(limits="900 tokens/day", key="ann", parent=team, clock=world.clock)
    book = BudgetBook({"free": "$5/day"}, organizations={"acme": "$7/day"}, prices=PRICES, clock=world.clock)
    bob = book.for_user("bob", organization="acme")
    for budget in (ann, bob):
        with call_options(budget=budget):
            world.ask(GatedSender(world.gate()), FarSide(world.clock, Reply(body=USED)))
    assert (ann.remaining_budget, team.remaining_money) == (900 - 42, 9_000_000 - 180)
    assert bob.remaining_money == 5_000_000 - 180
    assert book.for_user("eve", organization="acme").prices is PRICES


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"limits": "$5/day", "prices": {"m": (1, 2)}}, "are not Prices"),
        ({"limits": "5 tokens/day", "prices": PRICES}, "change nothing: no limit is one of money"),
        ({"prices": PRICES}, "change nothing"),
        ({"limits": "€5/day", "prices": PRICES}, "in USD, and a limit is in EUR"),
        (
            {"limits": "5 tokens/day", "prices": PRICES, "parent": TokenBudget(limits="€5/day")},
            "in USD, and a limit is in EUR",
        ),
        (
            {"limits": "€5/day", "parent": TokenBudget(None, money={86_400: 5}, prices=PRICES)},
            "in USD, and a limit is in EUR",
        ),
    ],
)
def test_prices_that_cannot_work_are_refused_where_they_are_written(options, why):
    with pytest.raises(InvalidConfig, match=why):
        TokenBudget(**options)
    if "parent" not in options:
        tier = {name: value for name, value in options.items() if name != "prices"}
        with pytest.raises(InvalidConfig, match=why):
            BudgetBook({"free": tier}, prices=options["prices"])


def test_a_call_is_refused_if_its_tier_has_come_to_limit_money_without_prices_inside_the_block(world):
    book = BudgetBook({"free": "100_000 tokens/day", "paid": "$5/day"}, clock=world.clock)
    far_side = FarSide(world.clock, Reply(body=USED))
    with call_options(budget=book.for_user("bob")):
        book.for_user("bob", tier="paid")
        with pytest.raises(InvalidConfig, match=r"limits money, .* write prices="):
            world.ask(GatedSender(world.gate()), far_side)
    assert far_side.asked_at == []


def test_prices_without_a_currency_and_limits_in_figures_go_together():
    prices = Prices({"m": (1.0, 2.0)})
    assert TokenBudget(limits="€5/day", prices=prices).prices is prices
    assert TokenBudget(None, money={86_400: 5}, prices=PRICES).prices is PRICES


def test_a_client_that_charges_tokens_refuses_a_budget_of_money_alone(world):
    client = ResilientClient(clock=world.clock)
    with pytest.raises(InvalidConfig, match="charges tokens"), call_options(budget=priced(world)):
        client.call(lambda: 1)


# -- ResilientClient


def test_a_client_obeys_the_options(world):
    clock, seen = world.clock, Recorder()
    config = ResilienceConfig(requests_per_minute=10, tokens_per_minute=600, max_retries=0)
    client = ResilientClient(config, tokens=50, usage=lambda result: result, clock=clock, observer=seen)
    budget = TokenBudget(1_000, clock=clock)

    def call():
        if world.colour == "sync":
            return client.call(lambda: 70)

        async def ask():
            return 70

        return asyncio.run(client.call_async(ask))

    with call_options(tenant="ann", cost={"requests": 9, "tokens": 200}, budget=budget):
        assert call() == 70
    assert [event.tenant for event in seen.events if isinstance(event, Admitted)] == ["ann"]
    assert budget.remaining_budget == 930
    with pytest.raises(WaitTimeout), call_options(timeout=10, cost=2):
        call()
    assert call() == 70
