"""A cluster that lives long under load and faults: its load, its figures over time, and which of them may grow."""
