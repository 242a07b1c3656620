"""Fairness at a saturated gate: a hundred tenants by weight, and large requests among small ones."""

import asyncio
import random

import pytest

from headgate import Dispatch, InvalidCapacity, InvalidConfig, MemoryLimiter
from headgate.testing import ManualClock, run

GRADED = {f"tenant {i}": 1 + i % 10 for i in range(100)}
STEEP = {f"tenant {i}": (1, 1, 1, 50)[i % 4] for i in range(100)}
EQUAL = {f"tenant {i}": 1 for i in range(100)}
WEIGHTS = {"equal": EQUAL, "graded": GRADED, "steep": STEEP}


def saturate(weights, until, *, kind="rate", workers=2, costs=(1,), seed=0):
    """[(tenant, cost)] in the order of service, while every tenant always wants more than it gets.

    The gate is full before the tenants come, so that each of them waits from its first call on.
    """

    async def main(clock):
        limits = {"rates": "100/s burst 10"} if kind == "rate" else {"concurrency": 4}
        gate = Dispatch(
            "gate",
            **{"concurrency": None, "throttled_concurrency": None, "byte_budget": None, **limits},
            weights=weights,
            clock=clock,
        )
        before = [gate.try_admit(cost=10) for _ in range(1 if kind == "rate" else 4)]
        clock.at(1, lambda: [permit.settle() for permit in before])
        served = []

        async def work(tenant, dice):
            while len(served) < until:
                cost = dice.choice(costs)
                async with gate.admit(tenant=tenant, cost=cost):
                    served.append((tenant, cost))
                    if kind == "places":
                        await asyncio.sleep(0.04)

        await asyncio.gather(
            *(
                work(tenant, random.Random(f"{seed} {tenant} {i}"))
                for tenant in weights
                for i in range(workers)
            )
        )
        return served[:until]

    return run(main)


def jain(shares):
    """Jain's index of fairness: 1 if all have the same, 1/n if one has everything."""
    shares = list(shares)
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def unfairness(service, weights, largest):
    """By how much two tenants are further apart than fair queueing allows; zero or less is fair.

    |s_i/w_i - s_j/w_j| <= c/w_i + c/w_j for all pairs: there is one level of service per weight,
    and each tenant is within one request of it.
    """
    highest = max((service[tenant] - largest) / weight for tenant, weight in weights.items())
    lowest = min((service[tenant] + largest) / weight for tenant, weight in weights.items())
    return highest - lowest


@pytest.mark.parametrize("kind", ["rate", "places"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_hundred_tenants_are_within_one_request_of_their_weighted_share_at_every_instant(name, kind):
    """After each single admission, from the beginning."""
    weights = WEIGHTS[name]
    rounds = 3 if name == "steep" else 8
    service = dict.fromkeys(weights, 0)
    for count, (tenant, cost) in enumerate(saturate(weights, rounds * sum(weights.values()), kind=kind)):
        service[tenant] += cost
        if count % 5 == 0:
            assert unfairness(service, weights, 1) <= 1e-9


@pytest.mark.parametrize("kind", ["rate", "places"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_after_each_full_round_every_tenant_has_had_its_share_to_within_one_request(name, kind):
    """A round has as many admissions as the sum of weights, so each share is a whole number."""
    weights = WEIGHTS[name]
    round_of = sum(weights.values())
    served = saturate(weights, 4 * round_of, kind=kind)
    service = dict.fromkeys(weights, 0)
    for count, (tenant, cost) in enumerate(served, 1):
        service[tenant] += cost
        if count % round_of == 0:
            for each, weight in weights.items():
                assert abs(service[each] - weight * count / round_of) <= 1


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("cut", [0, 17, 333])
def test_jains_index_of_service_per_weight_is_at_least_99_percent_in_any_stretch(name, cut):
    weights = WEIGHTS[name]
    service = dict.fromkeys(weights, 0)
    for tenant, cost in saturate(weights, 12 * sum(weights.values()) + cut):
        service[tenant] += cost
    assert jain(service[tenant] / weight for tenant, weight in weights.items()) >= 0.99


@pytest.mark.parametrize("seed", range(3))
def test_tenants_share_cost_and_not_numbers_of_calls(seed):
    """Calls of one to seven units; at every instant each tenant is within one of the largest."""
    weights = GRADED
    served = saturate(weights, 6000, costs=(1, 1, 2, 7), seed=seed)
    service = dict.fromkeys(weights, 0)
    for count, (tenant, cost) in enumerate(served):
        service[tenant] += cost
        if count % 20 == 0:
            assert unfairness(service, weights, 7) <= 1e-9
    assert jain(service[tenant] / weight for tenant, weight in weights.items()) >= 0.99


def test_the_bound_of_fairness_holds_in_any_interval_in_which_all_tenants_wait():
    weights = GRADED
    served = saturate(weights, 5000)
    dice = random.Random(7)
    for _ in range(150):
        begin = dice.randrange(4500)
        end = dice.randrange(begin, min(5000, begin + 2000))
        service = dict.fromkeys(weights, 0)
        for tenant, cost in served[begin:end]:
            service[tenant] += cost
        assert unfairness(service, weights, 1) <= 1e-9


def test_a_tenant_without_a_weight_has_weight_one():
    weights = {"gold": 3}
    served = saturate(dict.fromkeys(["gold", "plain", "other"], 1) | weights, 500)
    counts = {name: sum(tenant == name for tenant, _ in served) for name in ("gold", "plain", "other")}
    assert counts == {"gold": 300, "plain": 100, "other": 100}


def test_a_tenant_that_wants_little_gets_it_and_the_rest_is_shared_by_weight():
    """Units that one tenant does not use go to the others, three to one."""

    async def main(clock):
        gate = Dispatch("gate", rates="100/s burst 1", weights={"gold": 3, "modest": 50}, clock=clock)
        gate.try_admit().settle()
        served = []
        waits = []

        async def work(tenant, pause):
            while clock.seconds() < 30:
                async with gate.admit(tenant=tenant) as permit:
                    if clock.seconds() >= 30:
                        return
                    served.append(tenant)
                    if tenant == "modest":
                        waits.append(permit.waited)
                await asyncio.sleep(pause)

        await asyncio.gather(*(work(tenant, 0) for tenant in ("gold", "plain") * 4), work("modest", 0.5))
        return served, waits

    served, waits = run(main)
    assert abs(served.count("gold") - 3 * served.count("plain")) <= 4
    assert served.count("modest") >= 55
    assert max(waits) <= 0.03 + 1e-9  # its own calls, and at most one of each other tenant
    assert len(served) == 2999  # all units that the rate gives in the first thirty seconds


@pytest.mark.parametrize("weight", [0, -1, 2.5, "4", None, True, float("nan")])
def test_a_weight_that_cannot_work_is_refused_with_the_tenant_and_what_to_write(weight):
    with pytest.raises(InvalidCapacity) as caught:
        Dispatch(weights={"gold": weight})
    assert f"weights['gold']={weight!r}" in str(caught.value)
    assert "write" in str(caught.value)


@pytest.mark.parametrize("weights", [["gold"], 4, "gold"])
def test_weights_that_are_not_a_mapping_are_refused(weights):
    with pytest.raises(InvalidConfig, match=r"write e\.g\."):
        Dispatch(weights=weights)


# -- large requests among many small ones: 60 % of the burst of 50 at a hundred a second

RATE, BURST, LARGE = 100, 50, 30
IN_FAIR_TIME = LARGE / RATE + 1 / RATE  # its cost at the rate, and one request that was being served


@pytest.mark.parametrize("weight", [1, 10])
def test_a_large_request_is_served_in_fair_time_although_small_ones_always_wait(weight):
    """The other tenant always has twenty calls in line; the large request is no later for it.

    This holds while large requests stay within their share: at one to ten they use 30 units
    every five seconds, and 9 a second are theirs.
    """

    async def main(clock):
        gate = Dispatch(
            "gate", rates=f"{RATE}/s burst {BURST}", weights={"small": weight}, clock=clock, concurrency=None
        )

        async def small():
            while clock.seconds() < 55:
                async with gate.admit(tenant="small"):
                    pass
                await asyncio.sleep(0)

        crowd = [asyncio.ensure_future(small()) for _ in range(20)]
        waits = []
        for turn in range(10):
            await asyncio.sleep(5 + turn * 0.0137)
            async with gate.admit(tenant="large", cost=LARGE) as permit:
                waits.append(permit.waited)
        await asyncio.gather(*crowd)
        return waits

    for waited in run(main):
        assert waited <= IN_FAIR_TIME + 1e-9


def test_a_large_request_without_tenants_is_not_overtaken_by_later_ones():
    """Small ones come at twice the rate; those that come later go later."""

    async def main(clock):
        gate = Dispatch("gate", rates=f"{RATE}/s burst {BURST}", clock=clock, concurrency=None)
        gate.try_admit(cost=BURST).settle()
        overtaken = []

        async def small(i):
            async with gate.admit():
                if i > 40 and not done:
                    overtaken.append(i)

        done = []

        async def arrivals():
            tasks = []
            for i in range(400):
                tasks.append(asyncio.ensure_future(small(i)))
                await asyncio.sleep(0.005)  # twice the rate
            await asyncio.gather(*tasks)

        crowd = asyncio.ensure_future(arrivals())
        await asyncio.sleep(0.2001)
        ahead = gate.snapshot().waiting
        async with gate.admit(cost=LARGE) as permit:
            done.append(clock.seconds())
            waited = permit.waited
        await crowd
        return ahead, waited, overtaken

    ahead, waited, overtaken = run(main)
    assert ahead > 10
    assert waited <= (ahead + LARGE + 1) / RATE
    assert overtaken == []


@pytest.mark.parametrize("kind", ["configured", "template"])
def test_a_large_acquire_is_served_in_fair_time_although_small_ones_try_all_the_time(kind):
    """At a MemoryLimiter; small calls try a thousand times a second and wait as well."""

    async def main(clock):
        rates = f"{RATE}/s burst {BURST}"
        limiter = MemoryLimiter(rates=rates if kind == "template" else (), clock=clock)
        if kind == "configured":
            limiter.set_rates("api", rates)

        async def try_without_end():
            while clock.seconds() < 20:
                limiter.try_acquire("api")
                await asyncio.sleep(0.001)

        async def wait_without_end():
            while clock.seconds() < 20:
                await asyncio.sleep(0.02)
                await limiter.acquire_async("api")

        crowd = [
            asyncio.ensure_future(act()) for act in (try_without_end, wait_without_end, wait_without_end)
        ]
        waits = []
        for _ in range(10):
            await asyncio.sleep(1.0003)
            began = clock.seconds()
            await limiter.acquire_async("api", cost=LARGE)
            waits.append(clock.seconds() - began)
        await asyncio.gather(*crowd)
        return waits

    waits = run(main)
    # Two calls of one unit each were in line before it.
    assert max(waits) <= IN_FAIR_TIME + 2 / RATE + 1e-9
    assert max(waits) >= 0.2  # the large call had to wait


def test_a_request_larger_than_the_burst_is_served_among_small_ones():
    """It waits for a full bucket, which no other call empties meanwhile."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("api", 100, 1, burst=50)
    while limiter.try_acquire("api"):
        pass
    limiter.acquire("api", cost=80)
    assert clock.seconds() == 0.5
    limiter.acquire("api")
    assert clock.seconds() == 0.5 + 0.31  # the debt of thirty and the cost of the next call
