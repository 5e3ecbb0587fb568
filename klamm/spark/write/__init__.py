"""Writes rows as records: partitions, encoding, the sink."""
