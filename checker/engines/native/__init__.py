"""Exhaustive search in C: the machine is printed as C, compiled once, and loaded."""
