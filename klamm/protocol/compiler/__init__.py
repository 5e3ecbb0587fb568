"""Compiles the notation of `schema.py` into functions: straight-line Python for each message and version.

A decoder and an encoder are one function each: the structs of a message become nested loops, and fields of fixed size
that follow each other are read or written by one `struct` call, together with the length of the next string or array.
Both also exist in steps: the same lines with a `yield` at the end of the loops.

What must stay true:
- A decoder raises `InvalidFrame`, and nothing else, for any bytes that are not such a message: cut or oversized fields,
  null where the schema does not allow it, text that is not UTF-8, tagged fields out of order or with a wrong size, and
  bytes after the end (which are allowed after requests). The error names the path of the field, found by the line of
  the function that failed.
- The work and memory that a frame costs are bounded before they are spent: an array's count must fit into the bytes
  that follow it, and all arrays and tagged fields of a message together hold at most `max_elements` elements.
- The common case is handled inline. Longer, null or invalid values go to the readers in `primitives.py`, which alone
  decide what is valid.
"""
