"""Rate limiters, middlewares and dependencies in the form that frameworks ask for.

Each module needs its framework. Importing this package loads none of them.
"""
