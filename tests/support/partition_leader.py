"""A broker that leads partition 0 of every topic, answers as a test says, and keeps what it accepts as Kafka's do."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.record_batch import NO_SEQUENCE, parse_header
from klamm.protocol.record.records import decode_records
from klamm.protocol.vocabulary import ACKS_NONE
from support.scripted_broker import Asked

Answer = ErrorCode | None
"""NONE: as a leader does. None: no answer, and nothing is appended. Other codes: nothing is appended."""


class Leader:
    """`errors` come first; then it is a good leader. `values` holds what is in its log."""

    def __init__(self, *errors: Answer) -> None:
        self.errors = list(errors)
        self.values: list[bytes] = []
        self.max_batch_bytes = 1_000_000
        # The code for batches that hold certain values, before anything else is looked at.
        self.refuses: Callable[[Sequence[bytes]], Answer] = lambda values: ErrorCode.NONE
        # Appends the next batch, but does not answer.
        self.swallows_an_answer = False
        self.answered = 0
        self.producer_ids = 0
        self.has_producer_ids = True
        self.requests: list[ProduceRequest] = []
        self.node_address = ("", 0)
        self._asked = asyncio.Event()
        # By producer id: the sequence number that is expected, and the (base sequence, count) of its batches.
        self.expected: dict[int, int] = {}
        self._known: dict[tuple[int, int, int], int] = {}

    async def asked(self, times: int) -> None:
        """Returns when so many batches have come."""
        while self.answered < times:
            self._asked.clear()
            await self._asked.wait()

    def answer(self, asked: Asked) -> Any:
        _, header, body = asked
        if header.api_key is ApiKey.METADATA:
            return metadata_response(self.node_address, [topic.name for topic in body.topics])
        if header.api_key is ApiKey.INIT_PRODUCER_ID:
            response = messages.response_class(ApiKey.INIT_PRODUCER_ID)
            if not self.has_producer_ids:
                return response(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.producer_ids += 1
            return response(error_code=0, producer_id=6 + self.producer_ids, producer_epoch=0)
        assert body.transactional_id is None
        self.requests.append(body)
        (topic,) = body.topic_data
        (wanted,) = topic.partition_data
        self.answered += 1
        self._asked.set()
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        if error is None:
            return None
        code, offset = self._append(bytes(wanted.records)) if error is ErrorCode.NONE else (error, -1)
        if self.swallows_an_answer or body.acks == ACKS_NONE:
            self.swallows_an_answer = False
            return None
        topic_class = ProduceResponse.TopicProduceResponse
        result = topic_class.PartitionProduceResponse(index=wanted.index, error_code=code, base_offset=offset)
        return ProduceResponse(responses=[topic_class(name=topic.name, partition_responses=[result])])

    def _append(self, data: bytes) -> tuple[ErrorCode, int]:
        header = parse_header(data)
        values = [record.value or b"" for record in decode_records(data, 0, header)]
        if len(data) > self.max_batch_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if (code := self.refuses(values)) is not ErrorCode.NONE:
            assert code is not None
            return code, -1
        offset = len(self.values)
        if header.base_sequence != NO_SEQUENCE:
            known = (header.producer_id, header.base_sequence, header.record_count)
            if known in self._known:
                return ErrorCode.NONE, self._known[known]
            if header.base_sequence != self.expected.get(header.producer_id, 0):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self._known[known] = offset
            self.expected[header.producer_id] = header.base_sequence + header.record_count
        self.values += values
        return ErrorCode.NONE, offset


def metadata_response(address: tuple[str, int], topics: Sequence[str], partitions: int = 1) -> Any:
    """One broker leads all partitions of these topics."""
    response = messages.response_class(ApiKey.METADATA)
    topic = response.MetadataResponseTopic
    described = [
        topic.MetadataResponsePartition(
            error_code=0, partition_index=index, leader_id=0, leader_epoch=0, replica_nodes=[0], isr_nodes=[0]
        )
        for index in range(partitions)
    ]
    return response(
        cluster_id="c",
        controller_id=0,
        brokers=[response.MetadataResponseBroker(node_id=0, host=address[0], port=address[1], rack=None)],
        topics=[topic(error_code=0, name=name, is_internal=False, partitions=described) for name in topics],
    )
