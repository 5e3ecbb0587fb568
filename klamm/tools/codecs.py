"""kafka-python's compression, done by cramjam.

kafka-python needs one library for each of snappy, lz4 and zstd; klamm already has cramjam, which does all three.
kafka-python's record batches call a few functions by name, and this module replaces those. kafka-python's minor version
is pinned, and a test sends records of every compression type.
"""

from types import SimpleNamespace

import cramjam


def use_cramjam() -> None:
    """Lets kafka-python compress and decompress snappy, lz4 and zstd."""
    from kafka import codec
    from kafka.record import default_records

    # kafka-python takes a module attribute that is not None as an installed library. It adds snappy's framing itself.
    codec.snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    compressors = {"lz4": _compress_lz4, "zstd": lambda data: bytes(cramjam.zstd.compress(data))}
    for name, library in (("lz4", cramjam.lz4), ("zstd", cramjam.zstd)):
        setattr(codec, name, library)
        setattr(default_records, f"{name}_encode", compressors[name])
        setattr(default_records, f"{name}_decode", lambda data, library=library: bytes(library.decompress(data)))


def _compress_lz4(data: bytes) -> bytes:
    # Java's reader accepts only frames whose blocks are independent.
    compressor = cramjam.lz4.Compressor(block_linked=False, content_checksum=False)
    compressor.compress(data)
    return bytes(compressor.finish())
