"""Records: shared state of breakers and budgets, changed by compare-and-swap."""
