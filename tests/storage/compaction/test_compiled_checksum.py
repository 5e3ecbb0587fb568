"""The checksum of the cleaner's compiled loops."""

import random

import numpy as np
import pytest

from klamm.base.checksum import crc32c
from klamm.storage.compaction.compiled_checksum import checksum, checksum_by_table, checksum_table


@pytest.mark.parametrize("function", [checksum, checksum_by_table])
def test_it_is_that_of_record_batches_for_all_lengths_and_places(function) -> None:
    data = random.Random(1).randbytes(300)
    for at, end in [(0, 0), (3, 300), *((at, at + length) for at in (0, 1, 5) for length in range(40))]:
        assert function(np.frombuffer(data, np.uint8), at, end, checksum_table()) == crc32c(data[at:end])
