"""What is known beyond one process: files, stores and buses.

Rules of this room: it speaks in values, and whoever decides never waits for it under a lock.
Nothing here is loaded until something is shared.
"""
