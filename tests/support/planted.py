"""Differences between replicas, planted into the segments of a broker that is stopped."""

from pathlib import Path

from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, iterate_batches, parse_header, write_header


def first_segment(data_directory: Path, topic: str, partition: int = 0) -> Path:
    return min((data_directory / f"{topic}-{partition}").glob("*.log"))


def change_records(segment: Path, number: int) -> tuple[int, int]:
    """Changes two bytes of a batch and gives it the checksum that fits; returns its first and last offset."""
    records = bytearray(segment.read_bytes())
    position, header = list(iterate_batches(records))[number]
    assert header.size_bytes > HEADER_SIZE_BYTES + 10
    # Behind the last value comes one byte, the number of headers.
    for at in (position + header.size_bytes - 3, position + header.size_bytes - 2):
        records[at] ^= 0x15
    write_header(memoryview(records)[position:], 0, parse_header(records, position))
    segment.write_bytes(records)
    return header.base_offset, header.last_offset


def flip_bit(segment: Path, number: int) -> tuple[int, int]:
    """Changes a batch as a failing disk does: its checksum does not fit any more."""
    records = bytearray(segment.read_bytes())
    position, header = list(iterate_batches(records))[number]
    records[position + header.size_bytes - 2] ^= 1
    segment.write_bytes(records)
    return header.base_offset, header.last_offset


def drop_batch(segment: Path, number: int) -> tuple[int, int]:
    """Removes a batch, and the indexes, which a broker makes again."""
    records = segment.read_bytes()
    position, header = list(iterate_batches(records))[number]
    segment.write_bytes(records[:position] + records[position + header.size_bytes :])
    for suffix in (".index", ".timeindex"):
        segment.with_suffix(suffix).unlink(missing_ok=True)
    return header.base_offset, header.last_offset
