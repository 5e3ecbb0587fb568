"""Damages a batch in the log of one replica, whether its broker runs or not."""

import posixpath

from klamm.base.environment import FileSystem
from klamm.faults.commands import Json
from klamm.faults.wire import FaultError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.record_batch import crc_matches
from klamm.storage.segments.batch_scan import find_batch
from klamm.storage.segments.segment import LOG_SUFFIX


def corrupt_batch(file_system: FileSystem, directory: str, offset: int) -> dict[str, Json]:
    """Flips the bits of the last byte of the batch with this offset, in a partition's directory.

    An already damaged batch stays as it is. Raises FaultError.
    """
    partition = posixpath.basename(directory)
    if not file_system.is_directory(directory):
        raise FaultError(f"there is no log of {partition} in {posixpath.dirname(directory)}")
    names = [name for name in file_system.list_directory(directory) if name.endswith(LOG_SUFFIX)]
    bases = [int(name.removesuffix(LOG_SUFFIX)) for name in names]
    candidates = [base for base in bases if base <= offset]
    if not candidates:
        raise FaultError(f"{partition} has no offset {offset}; its log begins at {bases[0] if bases else 0}")
    path = f"{directory}/{max(candidates):020d}{LOG_SUFFIX}"
    file = file_system.open(path)
    try:
        try:
            found = find_batch(file.read, 0, file.size(), offset)
        except KafkaError as error:
            raise FaultError(f"{path} is damaged before offset {offset}: {error}") from None
        if found is None or found[1].base_offset > offset:
            raise FaultError(f"{partition} has no batch with offset {offset}")
        start, header = found
        position = start + header.size_bytes - 1
        batch = file.read(start, header.size_bytes)
        if crc_matches(batch, 0, header):
            file.write(position, bytes([batch[-1] ^ 0xFF]))
    finally:
        file.close()
    return {"path": path, "position": position, "base_offset": header.base_offset, "last_offset": header.last_offset}
