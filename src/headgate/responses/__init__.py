"""What an HTTP response says about limits, usage and cost."""
