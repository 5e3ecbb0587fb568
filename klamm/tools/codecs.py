"""kafka-python's compression, done by cramjam.

kafka-python wants one more library for each of snappy, lz4 and zstd; klamm has them all in one already. Its record
batches call these few functions by name, which are replaced here; kafka-python's minor version is pinned, and a test
sends every type through.
"""

from types import SimpleNamespace

import cramjam


def use_cramjam() -> None:
    """Lets kafka-python compress and decompress snappy, lz4 and zstd."""
    from kafka import codec
    from kafka.record import default_records

    # What is not None counts as installed. snappy's framing is kafka-python's own, around these two.
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
    # Java's reader takes only frames whose blocks do not depend on each other.
    compressor = cramjam.lz4.Compressor(block_linked=False, content_checksum=False)
    compressor.compress(data)
    return bytes(compressor.finish())
