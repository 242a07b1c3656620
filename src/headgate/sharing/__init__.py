"""What processes share: stores, the pools and records in them, and this process's part in each.

Nothing here is loaded before something is shared. Only the courier's thread waits for a store.
"""
