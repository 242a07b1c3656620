"""Message buses that connect the agents of a swarm."""
