"""Faults that a test injects into its cluster: `c.faults`, and what is built on it."""
