"""Budgets of tokens and money over time."""
