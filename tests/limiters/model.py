"""A token bucket by its definition, to compare limiters with."""

from fractions import Fraction

from hypothesis import strategies as st


class Bucket:
    """A bucket by definition: a level in fractions that grows with time, up to the burst."""

    def __init__(self, amount, window_ns, burst):
        self.amount, self.window_ns, self.burst = amount, window_ns, burst
        self.level = Fraction(burst)
        self.now = 0

    def pass_to(self, now):
        earned = Fraction((now - self.now) * self.amount, self.window_ns)
        self.level = min(Fraction(self.burst), self.level + earned)
        self.now = now

    def fits(self, cost):
        return not cost or self.level >= min(cost, self.burst)

    def take(self, cost):
        self.level -= cost

    def change(self, amount, window_ns, burst):
        """Continue from where it stands, cut to the new burst: nothing is created."""
        self.amount, self.window_ns, self.burst = amount, window_ns, burst
        self.level = min(self.level, Fraction(burst))


amounts = st.one_of(st.integers(1, 12), st.integers(1, 1000))
windows = st.one_of(st.sampled_from([1, 7, 60, 3600]), st.integers(1, 100_000))  # in milliseconds
bursts = st.one_of(st.none(), st.integers(1, 30))
