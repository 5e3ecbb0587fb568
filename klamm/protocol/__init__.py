"""Kafka's protocol: bytes in, values out; no IO.

`messages` is the only way to encode and decode requests and responses. `schema` is the notation in which `apis` has one
module for each API, and `compiler` makes straight-line code of it. `record` has record batches; `vocabulary` and
`error_codes` the names and numbers.
"""
