"""How calls are admitted: the only place where callers wait."""
