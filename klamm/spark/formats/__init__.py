"""Typed keys and values: bytes of records become columns of structs, and structs become bytes.

`settings.py` has the options as plain values, `options.py` reads them, `coding.py` has the interface of decoders and
encoders and makes them; each format is a module.
"""
