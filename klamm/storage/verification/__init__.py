"""Verifies a log without a broker: finds its damage, and predicts what opening it would do. Writes nothing."""
