"""The judgements, as pure arithmetic.

Rules of this house: `now` is an argument, in integer nanoseconds. No clock, no lock, no I/O,
no logging, no dice. A rule that says no has changed nothing.
"""
