"""Trying again: what is worth it, how often, and after which delay."""
