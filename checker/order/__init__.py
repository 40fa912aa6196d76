"""Stream order: which accesses to memory have an order, and which race."""
