"""The live page: what limits calls, since when, and who waits."""
