"""Kafka's protocol: bytes in, values out; no IO.

`messages` is the only entrance to requests and responses. `schema` is the notation in which `apis` has one module for
each API, and `compiler` makes straight-line code of it. `record` has record batches; `vocabulary` and `errors` the
names and numbers.
"""
