"""Faults that a test injects into its cluster: `c.faults`, and the methods that use it."""
