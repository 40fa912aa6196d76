"""Design review: what a change of a design breaks, what it fixes, and what else it changes."""
