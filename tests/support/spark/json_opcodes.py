"""Runs the loops of `json_kernels.py` as plain Python, and prints as JSON how many opcodes documents take.

For a process of its own, with NUMBA_DISABLE_JIT=1: for each kind of document the counts for a size, for twice it, and
for four times it. No document is one that anybody means well with.
"""

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from klamm.spark.formats import json_kernels, json_tokens
from klamm.spark.formats.coding import make_decoder
from klamm.spark.formats.settings import JSON, ColumnFormat
from support.opcodes import Opcodes

SIZE = 200
TYPE = pa.struct(
    [
        ("x", pa.string()),
        ("a", pa.list_(pa.struct([("x", pa.int32()), ("a", pa.list_(pa.int32()))]))),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("t", pa.timestamp("us", "UTC")),
        ("d", pa.float64()),
    ]
)
DOCUMENTS: dict[str, Callable[[int], bytes]] = {
    "objects within each other": lambda size: b'{"y":' * size,
    "lists within each other": lambda size: b'{"x":' + b"[" * size,
    "lists that end too early": lambda size: b'{"a":' + b'[{"a":' * size + b"1",
    "a field that comes again": lambda size: b"{" + b'"a":[{"x":1}],' * size + b'"x":1}',
    "a field that comes again as null": lambda size: b"{" + b'"a":[{"x":1}],"a":null,' * size + b'"x":1}',
    "a name of escapes": lambda size: b'{"' + b"\\u0061" * size + b'":1}',
    "a text of escapes": lambda size: b'{"x":"' + b"\\u0061" * size + b'"}',
    "a text that is not UTF-8": lambda size: b'{"x":"' + b"\xff" * size + b'"}',
    "a text without an end": lambda size: b'{"x":"' + b"a" * size,
    "names that nobody wants": lambda size: b"{" + b",".join(b'"k%d":1' % number for number in range(size)) + b"}",
    "keys of a map": lambda size: b'{"m":{' + b",".join(b'"k%d":1' % number for number in range(size)) + b"}}",
    "elements without fields": lambda size: b'{"a":[' + b"{}," * size + b"{}]}",
    "elements of another type": lambda size: b'{"a":[' + b'"x",' * size + b"1]}",
    "spaces": lambda size: b" " * size,
    "commas": lambda size: b"{" + b"," * size,
    "digits": lambda size: b'{"d":' + b"1" * size + b"}",
}  # fmt: skip


def load64(data: np.ndarray, position: int) -> np.uint64:
    return np.uint64(int.from_bytes(data[position : position + 8].tobytes(), "little"))


def copy_bytes(target: np.ndarray, to: int, source: np.ndarray, at: int, size: int) -> None:
    target[to : to + size] = source[at : at + size]


def opcodes(document: bytes) -> int:
    decoder = make_decoder(ColumnFormat("value", JSON), TYPE)
    data = pa.array([document], pa.binary())
    with Opcodes() as found:
        decoder.decode(data)
    return found.count


def main() -> None:
    np.seterr(all="ignore")
    # What only compiled code can do.
    vars(json_tokens).update(_load64=load64)
    vars(json_kernels).update(copy_bytes=copy_bytes)
    print(json.dumps({name: [opcodes(make(SIZE * by)) for by in (1, 2, 4)] for name, make in DOCUMENTS.items()}))


if __name__ == "__main__":
    main()
