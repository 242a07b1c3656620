"""Rates by themselves: one for a function, or one for each of a million resources."""
