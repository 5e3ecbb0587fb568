"""What messages cost: klamm's compiled codecs, kafka-python's, and kio's where it is installed.

    python bench/messages.py

Prints microseconds for an encoding and for a decoding, the best of several rounds. The controller's requests keep
their encodings: "again" is the same request for the next broker.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from klamm.protocol.apis.fetch import (
    FetchableTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrTopicState
from klamm.protocol.apis.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.apis.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.compiler import decoders, encoders
from klamm.protocol.schema import Struct

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
warnings.simplefilter("ignore")

ROUNDS = 7
ROUND_S = 0.05
MAX_ELEMENTS = 10_000_000


# -- what is measured -------------------------------------------------------------------------------------------------


def best_us(work: Callable[[], object]) -> float:
    """The shortest time of one call, over some rounds of many."""
    start = time.perf_counter()
    work()
    calls = max(1, int(ROUND_S / max(time.perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(ROUNDS):
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - start) / calls)
        gc.enable()
    return best * 1e6


def by_topic(count: int, make: Callable[[int], object]) -> list[tuple[str, list[Any]]]:
    """So many partitions, a hundred in a topic."""
    return [
        (f"topic-{start}", [make(n) for n in range(start, min(start + 100, count))]) for start in range(0, count, 100)
    ]


def metadata(partitions: int) -> MetadataResponse:
    topic = MetadataResponse.MetadataResponseTopic
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=n, host="localhost", port=9092) for n in range(3)],
        cluster_id="AAAAAAAAAAAAAAAAAAAAAA",
        controller_id=1,
        topics=[
            topic(
                error_code=0,
                name=name,
                partitions=[
                    topic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=number,
                        leader_id=1,
                        leader_epoch=5,
                        replica_nodes=[1, 2, 3],
                        isr_nodes=[1, 2, 3],
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(partitions, lambda number: number)
        ],
    )


def fetch_request(partitions: int) -> FetchRequest:
    return FetchRequest(
        topics=[
            FetchTopic(
                topic=name,
                partitions=[
                    FetchPartition(
                        partition=number, current_leader_epoch=1, fetch_offset=100, partition_max_bytes=1024 * 1024
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(partitions, lambda number: number)
        ]
    )


def fetch_response(partitions: int) -> FetchResponse:
    return FetchResponse(
        responses=[
            FetchableTopic(
                topic=name,
                partitions=[
                    PartitionData(
                        partition_index=number,
                        high_watermark=100,
                        last_stable_offset=100,
                        log_start_offset=0,
                        records=bytes(100),
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(partitions, lambda number: number)
        ]
    )


def leader_and_isr_request(partitions: int) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=2,
        broker_epoch=3,
        topic_states=[
            LeaderAndIsrTopicState(name, None, states)
            for name, states in by_topic(
                partitions, lambda number: LeaderAndIsrPartitionState(number, 1, 1, 5, (1, 2, 3), 7, (1, 2, 3))
            )
        ],
    )


def forget_encodings(request: LeaderAndIsrRequest) -> None:
    for topic in request.topic_states:
        for state in topic.partition_states:
            state._encoded = None


COMMIT = OffsetCommitRequest.of("group", {("topic", 0): 100})
COMMITTED_TOPIC = OffsetCommitResponse.OffsetCommitResponseTopic
COMMITTED = COMMITTED_TOPIC.OffsetCommitResponsePartition(partition_index=0, error_code=0)
PRODUCED_TOPIC = ProduceResponse.TopicProduceResponse
PRODUCED = PRODUCED_TOPIC.PartitionProduceResponse(index=0, error_code=0, base_offset=100, log_start_offset=0)

# Name, version, the class, its name in kafka-python, the message.
Case = tuple[str, int, type[Struct], str, Any]
CASES: list[Case] = [
    ("Metadata response, 50,000 partitions", 11, MetadataResponse, "MetadataResponse", metadata(50_000)),
    ("Metadata request", 11, MetadataRequest, "MetadataRequest", MetadataRequest(topics=None)),
    ("Fetch request, 1", 12, FetchRequest, "FetchRequest", fetch_request(1)),
    ("Fetch request, 10", 12, FetchRequest, "FetchRequest", fetch_request(10)),
    ("Fetch request, 1,000", 12, FetchRequest, "FetchRequest", fetch_request(1_000)),
    ("Fetch request, 10,000", 12, FetchRequest, "FetchRequest", fetch_request(10_000)),
    ("Fetch response, 1", 12, FetchResponse, "FetchResponse", fetch_response(1)),
    ("Fetch response, 10", 12, FetchResponse, "FetchResponse", fetch_response(10)),
    ("Fetch response, 1,000", 12, FetchResponse, "FetchResponse", fetch_response(1_000)),
    ("Fetch response, 10,000", 12, FetchResponse, "FetchResponse", fetch_response(10_000)),
    (
        "Produce request, 1",
        9,
        ProduceRequest,
        "ProduceRequest",
        ProduceRequest.of(None, -1, 30_000, [("topic", [(0, bytes(1000))])]),
    ),
    (
        "Produce response, 1",
        9,
        ProduceResponse,
        "ProduceResponse",
        ProduceResponse(responses=[PRODUCED_TOPIC(name="topic", partition_responses=[PRODUCED])]),
    ),
    ("OffsetCommit request, 1", 8, OffsetCommitRequest, "OffsetCommitRequest", COMMIT),
    (
        "OffsetCommit response, 1",
        8,
        OffsetCommitResponse,
        "OffsetCommitResponse",
        OffsetCommitResponse(topics=[COMMITTED_TOPIC(name="topic", partitions=[COMMITTED])]),
    ),
    (
        "LeaderAndIsr request, 10,000",
        5,
        LeaderAndIsrRequest,
        "LeaderAndIsrRequest",
        leader_and_isr_request(10_000),
    ),
]


def library(name: str, version: int, body: bytes) -> tuple[Callable[[], object], Callable[[], object]]:
    """kafka-python's encoding and decoding of the same bytes."""
    from klamm.protocol.api_keys import ApiKey
    from support.message_oracle import library_class

    kind = "Request" if name.endswith("Request") else "Response"
    key = next(key for key in ApiKey if key.message_name + kind == name)
    message_class = library_class(key, kind)
    message = message_class.decode(body, version=version)
    message._header = None
    return lambda: message.encode(version=version), lambda: message_class.decode(body, version=version)


def kio(name: str, version: int, body: bytes) -> tuple[Callable[[], object], Callable[[], object]] | None:
    """kio's, or None where it is not installed or has no such message."""
    kind = "request" if name.endswith("Request") else "response"
    api = "".join(
        "_" + letter.lower() if letter.isupper() else letter for letter in name.removesuffix(kind.capitalize())
    )
    try:
        entity = getattr(importlib.import_module(f"kio.schema.{api[1:]}.v{version}.{kind}"), name)
        serial: Any = importlib.import_module("kio.serial")
    except ImportError:
        return None
    import io

    read, write = serial.entity_reader(entity), serial.entity_writer(entity)

    def decode() -> object:
        try:
            return read(body, 0)[0]
        except TypeError:
            return read(io.BytesIO(body))

    message = decode()

    def encode() -> object:
        buffer = io.BytesIO()
        write(buffer, message)
        return buffer

    return encode, decode


def row(
    label: str, functions: tuple[Callable[[], object], Callable[[], object]], than: tuple[float, float] | None
) -> None:
    times = tuple(map(best_us, functions))
    ratios = "" if than is None else f"   {times[0] / than[0]:5.2f} {times[1] / than[1]:5.2f}"
    print(f"  {label:<14} encode {times[0]:>11.1f}  decode {times[1]:>11.1f}{ratios}", flush=True)


def main() -> None:
    print("microseconds; on the right how many times as long as compiled")
    for what, version, struct_class, name, message in CASES:
        encode = encoders.compile_encoder(struct_class, version, True)
        decode = decoders.compile_decoder(struct_class, version, True, MAX_ELEMENTS)
        body = b"".join(encode(message))
        frame = bytearray(body)
        same = decode(frame, 0)
        print(f"{what} (version {version}, {len(body):,} bytes)")

        def anew() -> object:
            if struct_class is LeaderAndIsrRequest:  # noqa: B023
                forget_encodings(same)  # noqa: B023
            return encode(same)  # noqa: B023

        compiled = (best_us(anew), best_us(lambda: decode(frame, 0)))  # noqa: B023
        print(f"  {'compiled':<14} encode {compiled[0]:>11.1f}  decode {compiled[1]:>11.1f}")
        if struct_class is LeaderAndIsrRequest:
            print(f"  {'again':<14} encode {best_us(lambda: encode(same)):>11.1f}")  # noqa: B023
        row("kafka-python", library(name, version, body), compiled)
        found = kio(name, version, body)
        if found is not None:
            row("kio", found, compiled)


if __name__ == "__main__":
    main()
