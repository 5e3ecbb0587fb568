"""A log looked at without a broker: what is wrong with it, and what opening it would do. Nothing is written."""
