"""Limiters: a rate for a function, or rates for named resources, of which there may be a million."""
