"""Operators' own Python code inside a broker: policies and replica selectors (docs/plugins.md)."""
