"""The ledger: judges a running connector, or a recorded trace of one, event by event."""
