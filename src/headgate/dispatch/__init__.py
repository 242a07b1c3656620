"""The gate in front of one API, its backoff window, and what responses teach it."""
