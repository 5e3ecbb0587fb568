"""Rows become records: partitions, encoding, the sink."""
