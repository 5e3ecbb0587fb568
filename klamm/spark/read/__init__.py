"""Reads topics as Arrow batches: plans offsets, fetches and decodes, for batch and streaming queries."""
