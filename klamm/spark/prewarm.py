"""Compiles the loops that readers and writers run, before the first query needs them.

What must stay true:
- After `prewarm`, no reader or writer of data frames compiles anything, whatever its columns are.
"""

import numpy as np
import pyarrow as pa

from klamm import compiling
from klamm.protocol.compression import CompressionType
from klamm.protocol.record_batch import NO_PRODUCER_ID
from klamm.spark.read.decoding import Decoder
from klamm.spark.schema import ALL_COLUMNS, HEADERS, schema
from klamm.spark.write.columns import Columns
from klamm.spark.write.encoding import encode, record_sizes
from klamm.spark.write.partitioning import Topic, assign

_BATCH_BYTES = 1024 * 1024


def prewarm() -> compiling.Compilations:
    """Writes records into memory and reads them back. Returns how many functions were compiled or loaded."""
    texts = pa.array([b"a", None, b""], pa.binary())
    headers = pa.array(
        [[{"key": "k", "value": b"v"}, {"key": "k", "value": None}], [], None], schema([HEADERS])[0].type
    )
    timestamps = np.zeros(len(texts), np.int64)
    for keys, each in ((texts, headers), (None, None)):
        columns = Columns.from_arrow(keys, texts, each, timestamps)
        sizes = record_sizes(columns)
        chosen = assign([Topic("t", 1, [0], _BATCH_BYTES)], np.zeros(len(texts), np.int64), None, columns.keys, sizes)
        (batch,) = encode(columns, chosen.targets, sizes, chosen.limits)
        data = batch.seal(CompressionType.NONE, NO_PRODUCER_ID, -1, -1)
        decoder = Decoder("t", 0, ALL_COLUMNS, _BATCH_BYTES)
        (found,) = decoder.decode(decoder.scan(data), 0, len(texts))
        assert found.column("value").equals(texts)
    return compiling.compilations()
