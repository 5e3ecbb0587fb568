"""Topics become Arrow batches: which offsets, the fetches, the decoding; batch and streaming queries."""
