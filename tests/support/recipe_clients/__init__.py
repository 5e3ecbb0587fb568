"""Clients in other languages that tests/recipes tries: each runs in a process of its own (driver.py)."""
