"""Circuit breakers: calls to a service that keeps failing are refused at once."""
