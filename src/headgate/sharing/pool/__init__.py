"""Pools: what all processes with equal keys share of one gate."""
