"""Code that waits is tested in no time: `pytest examples/testing_with_manual_clock.py`, or run this file."""

import asyncio

from headgate import Dispatch, WaitTimeout
from headgate.testing import ManualClock, Recorder, run


class Weather:
    """Code of yours. It takes its gate as an argument."""

    def __init__(self, gate: Dispatch) -> None:
        self.gate = gate

    def forecast(self, city: str) -> str:
        with self.gate.admit(timeout=30):
            return f"rain in {city}"

    async def forecast_async(self, city: str) -> str:
        async with self.gate.admit(timeout=30):
            await asyncio.sleep(1)
            return f"rain in {city}"


def test_the_third_forecast_waits_a_second() -> None:
    clock = ManualClock(auto_advance=True)
    weather = Weather(Dispatch("weather", rates="1/s burst 2", clock=clock))
    assert [weather.forecast(city) for city in ("Oslo", "Bergen", "Tromsø")] == [
        "rain in Oslo",
        "rain in Bergen",
        "rain in Tromsø",
    ]
    assert clock.sleeps == [1.0]


def test_after_a_429_every_caller_holds_back() -> None:
    clock = ManualClock(auto_advance=True)
    gate = Dispatch("weather", pause=True, clock=clock)
    gate.set_backoff(20, reason="429")
    assert Weather(gate).forecast("Oslo") == "rain in Oslo"
    assert clock.seconds() >= 20


def test_a_wait_that_is_too_long_is_told() -> None:
    seen = Recorder()

    async def main(clock: ManualClock) -> None:
        gate = Dispatch("weather", concurrency=1, clock=clock, observer=seen)
        weather = Weather(gate)
        results = await asyncio.gather(
            *(weather.forecast_async(f"city {number}") for number in range(40)), return_exceptions=True
        )
        late = [result for result in results if isinstance(result, WaitTimeout)]
        assert len(late) == 10  # thirty had their second in thirty seconds

    run(main)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("passed:", name)
