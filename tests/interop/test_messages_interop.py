"""Every message in every version, against the classes of Apache Kafka: 2.8.2, and 4.4 for later versions.

A message of ours is read by Kafka, which then writes the same bytes and tells its fields by their names. So neither a
field's place, its type, its name nor its default can differ from Kafka's. One Java process of each version of Kafka
reads all messages.
"""

import base64
import json
import random
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from klamm.protocol import apis
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis import api_of
from klamm.protocol.compiler import decoders, encoders
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.schema import ZEROS, Field, Struct, fields_of
from support.message_oracle import in_library, library_class
from support.oracles import java_source_command
from support.random_messages import is_flexible, message_class, random_message

ORACLE = Path(__file__).with_name("Messages.java")
KINDS = ("Request", "Response")
SHORT_ROUNDS = 2
ROUNDS = 40
# Names that Kafka has changed; ours are those of kafka-python, by their place in the message. None is a field that 2.8
# does not know, which it keeps as it is.
OTHER_NAMES = {
    "MetadataResponse.topics.authorizedOperations": "topicAuthorizedOperations",
    "MetadataResponse.authorizedOperations": "clusterAuthorizedOperations",
    "DescribeClusterResponse.authorizedOperations": "clusterAuthorizedOperations",
}
NAMES_OF_2_8 = OTHER_NAMES | {
    "FetchResponse.responses.partitions": "partitionResponses",
    "FetchResponse.responses.partitions.partitionIndex": "partition",
    "FetchResponse.responses.partitions.records": "recordSet",
    "LeaderAndIsrRequest.requestType": "type",
    "OffsetCommitRequest.generationIdOrMemberEpoch": "generationId",
    "ApiVersionsResponse.zkMigrationReady": None,
    "AddPartitionsToTxnRequest.v3AndBelowTransactionalId": "transactionalId",
    "AddPartitionsToTxnRequest.v3AndBelowProducerId": "producerId",
    "AddPartitionsToTxnRequest.v3AndBelowProducerEpoch": "producerEpoch",
    "AddPartitionsToTxnRequest.v3AndBelowTopics": "topics",
    "AddPartitionsToTxnResponse.resultsByTopicV3AndBelow": "results",
    "AddPartitionsToTxnResponse.resultsByTopicV3AndBelow.resultsByPartition": "results",
    "AddPartitionsToTxnResponse.resultsByTopicV3AndBelow.resultsByPartition.partitionErrorCode": "errorCode",
    "DescribeLogDirsRequest.topics.partitions": "partitionIndex",
    "ElectLeadersRequest.topicPartitions.partitions": "partitionId",
}
NAMES_OF_4_4 = OTHER_NAMES | {"TxnOffsetCommitRequest.generationId": "generationIdOrMemberEpoch"}
Names = Mapping[str, str | None]

# Where klamm has another default than Kafka, which has 0, an empty array or text, or no records.
OWN_DEFAULTS = {
    "UpdateMetadataRequest.liveBrokers.rack",
    "ProduceRequest.topicData.partitionData.records",
    "ProduceResponse.responses.partitionResponses.baseOffset",
    "FetchRequest.replicaId",
    "FetchResponse.responses.partitions.highWatermark",
    "FetchResponse.responses.partitions.abortedTransactions",
    "FetchResponse.responses.partitions.records",
    "ListOffsetsRequest.replicaId",
    "DeleteTopicsRequest.topics.name",
    "CreatePartitionsRequest.topics.assignments",
}


class What(NamedTuple):
    """A message's API, kind and version."""

    key: ApiKey
    kind: str
    version: int

    def __str__(self) -> str:
        return f"{self.key.message_name}{self.kind} v{self.version}"


class Kafka:
    """Kafka's classes, in a process that answers a line to each line."""

    def __init__(self, names: Names, *jars: Path) -> None:
        self.names = names
        command = java_source_command(jars, ORACLE)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        versions, errors = self._tell(["versions", "errors"])
        parts = iter(errors.split())
        self.errors = {int(code): name for code, name in zip(parts, parts, strict=True)}
        numbers = iter(map(int, versions.split()))
        self.versions = {key: range(low, high + 1) for key, low, high in zip(numbers, numbers, numbers, strict=True)}

    def close(self) -> None:
        self._process.communicate(timeout=120)

    def _tell(self, lines: Sequence[str]) -> list[str]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None

        def ask() -> None:
            stdin.write("".join(f"{line}\n" for line in lines).encode())
            stdin.flush()

        # The pipes hold less than all questions and answers.
        asking = threading.Thread(target=ask)
        asking.start()
        answers = [stdout.readline().decode() for _ in lines]
        asking.join()
        assert all(answer.endswith("\n") for answer in answers), "the process of Kafka's classes has ended"
        return [answer.removesuffix("\n") for answer in answers]

    def reads(self, asked: list[tuple[What, bytes]]) -> list[tuple[bytes, Any]]:
        """Each message as Kafka writes it, and its fields."""
        return self._ask([f"{int(what.key)} {what.kind} {what.version} {body.hex()}".rstrip() for what, body in asked])

    def makes(self, asked: list[What]) -> list[tuple[bytes, Any]]:
        """A new message of each, with one new element in each array of structs."""
        return self._ask([f"new {int(what.key)} {what.kind} {what.version}" for what in asked])

    def _ask(self, lines: list[str]) -> list[tuple[bytes, Any]]:
        answers = self._tell(lines)
        for line, answer in zip(lines, answers, strict=True):
            assert not answer.startswith("error"), f"{line}: {answer}"
        return [(bytes.fromhex(body), json.loads(fields)) for body, fields in (one.split(" ", 1) for one in answers)]

    def known(self, whats: Iterable[What]) -> list[What]:
        return [what for what in whats if what.version in self.versions.get(int(what.key), ())]


@pytest.fixture(scope="module")
def kafka28(kafka_jars: Path) -> Iterator[Kafka]:
    with closing(Kafka(NAMES_OF_2_8, kafka_jars)) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def kafka44(kafka_jars: Path, kafka_clients4_jars: Path) -> Iterator[Kafka]:
    """Kafka 2.8's directory has the library for JSON."""
    with closing(Kafka(NAMES_OF_4_4, kafka_clients4_jars, kafka_jars)) as kafka:
        yield kafka


ALL = [What(key, kind, version) for key in apis.KEYS for kind in KINDS for version in api_of(key).known]

# Kafka 4 knows other versions of them. In their old versions our fields have not the form of Kafka's.
OF_CONTROLLERS = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA}
OF_OTHER_FORM = {
    *(What(ApiKey.LEADER_AND_ISR, "Request", version) for version in range(2)),
    *(What(ApiKey.LEADER_AND_ISR, "Response", version) for version in range(5)),
    *(What(ApiKey.STOP_REPLICA, "Request", version) for version in range(3)),
    *(What(ApiKey.UPDATE_METADATA, "Request", version) for version in range(5)),
}


# -- our messages as Kafka tells them ---------------------------------------------------------------------------------


def kafkas_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def told(message: Any, version: int, names: Names, place: str = "") -> dict[str, Any]:
    """The fields of a message as Kafka tells them. A tagged field that has its default is left out."""
    fields: dict[str, Any] = {}
    place = place or type(message).__name__
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if version not in field.versions or (field.is_tagged_in(version) and value == field.default):
            continue
        inner = f"{place}.{kafkas_name(field.name)}"
        name = names.get(inner, kafkas_name(field.name))
        if name is None:
            continue
        if field.kind == "Records" and value is not None:
            fields[name + "SizeInBytes"] = len(value)
        elif field.is_array and value is not None:
            fields[name] = [value_told(field.kind, element, version, names, inner) for element in value]
        else:
            fields[name] = value_told(field.kind, value, version, names, inner)
    return fields


def value_told(kind: Any, value: Any, version: int, names: Names, place: str) -> Any:
    if not isinstance(kind, str):
        return None if value is None else told(value, version, names, place)
    match kind:
        case "Bytes":
            return None if value is None else base64.b64encode(value).decode()
        case "Uuid":
            return base64.urlsafe_b64encode(value.bytes if value else bytes(16)).decode().rstrip("=")
        case "BitField":
            return -(2**31) if value is None else sum(1 << bit for bit in value)
        case _:
            return value


def encoded(what: What, message: Any) -> bytes:
    flexible = is_flexible(what.key, what.version)
    return b"".join(encoders.compile_encoder(message_class(what.key, what.kind), what.version, flexible)(message))


def made(rng: random.Random, what: What, names: Names) -> tuple[Any, dict[str, Any]]:
    """A random message, and its fields."""
    message = random_message(rng, what.key, what.kind, what.version)
    if what.key in OF_CONTROLLERS:
        library = in_library(message, library_class(what.key, what.kind), what.version)
        return message, library_told(library, type(library)._struct, what.version, names, type(library).__name__)
    drop_default_structs(message, what.version)
    return message, told(message, what.version, names)


def drop_default_structs(message: Struct, version: int) -> None:
    """Kafka does not write a tagged struct in which nothing is set; ours are None then."""
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if isinstance(field.kind, str) or value is None:
            continue
        for inner in value if field.is_array else [value]:
            drop_default_structs(inner, version)
        if field.is_tagged_in(version) and value == empty(field.kind):
            setattr(message, field.name, None)


def library_told(item: Any, schema: Any, version: int, names: Names, place: str) -> dict[str, Any]:
    """The fields of an object of the library's classes, whose schemas of control messages are ours."""
    fields: dict[str, Any] = {}
    for field in schema._fields:
        if not field.for_version_q(version):
            continue
        value = getattr(item, field.name)
        inner = f"{place}.{kafkas_name(field.name)}"
        if field.is_struct_array():
            value = [library_told(one, field.array_of, version, names, inner) for one in value]
        elif field.name == "topic_id":
            value = value_told("Uuid", value, version, names, inner)
        fields[names.get(inner) or kafkas_name(field.name)] = value
    return fields


# -- the comparison ---------------------------------------------------------------------------------------------------


def compare(kafka: Kafka, whats: list[What], rounds: int) -> None:
    rng = random.Random(rounds)
    asked = [(what, *made(rng, what, kafka.names)) for what in whats for _ in range(rounds)]
    answers = kafka.reads([(what, encoded(what, message)) for what, message, _ in asked])
    for (what, message, fields), (body, theirs) in zip(asked, answers, strict=True):
        assert body == encoded(what, message), what
        assert theirs == fields, what
        assert decoded(what, body) == message, what


def decoded(what: What, body: bytes) -> Any:
    flexible = is_flexible(what.key, what.version)
    decode = decoders.compile_decoder(message_class(what.key, what.kind), what.version, flexible, 100_000)
    return decode(bytearray(body), 0)


def test_kafka_2_8_reads_and_writes_the_same_messages(kafka28: Kafka) -> None:
    compare(kafka28, kafka28.known(ALL), SHORT_ROUNDS)


@pytest.mark.long
def test_kafka_2_8_reads_and_writes_the_same_messages_in_many_rounds(kafka28: Kafka) -> None:
    compare(kafka28, kafka28.known(ALL), ROUNDS)


@pytest.mark.long
def test_kafka_4_4_reads_and_writes_the_same_messages(kafka44: Kafka) -> None:
    compare(kafka44, kafka44.known(what for what in ALL if what.key not in OF_CONTROLLERS), ROUNDS)


# -- defaults ---------------------------------------------------------------------------------------------------------


def filled(struct_class: type[Struct], version: int) -> Any:
    """A message in which nothing was set, with one such element in each array of structs."""
    message = empty(struct_class)
    for field in fields_of(struct_class):
        if not field.is_array or isinstance(field.kind, str):
            continue
        if version in field.versions and getattr(message, field.name) is not None:
            setattr(message, field.name, [filled(field.kind, version)])
    return message


def empty(struct_class: type[Struct]) -> Any:
    """What Kafka's constructor makes: fields without a default are 0 or empty."""
    return struct_class(**{field.name: zero(field) for field in fields_of(struct_class) if field.is_required})


def zero(field: Field) -> Any:
    return field.default if field.is_array else ZEROS[field.kind] if isinstance(field.kind, str) else None


def compare_defaults(kafka: Kafka) -> None:
    whats = kafka.known(what for what in ALL if what not in OF_OTHER_FORM)
    # A field whose default is the same is dropped from both; what is left over has another default.
    names = dict.fromkeys(OWN_DEFAULTS)
    for what, (body, theirs) in zip(whats, kafka.makes(whats), strict=True):
        message = filled(message_class(what.key, what.kind), what.version)
        ours = told(message, what.version, {**kafka.names, **names})
        without(theirs, what, kafka.names)
        assert theirs == ours, what
        read = decoded(what, body)
        for field in fields_of(type(message)):
            place = f"{type(message).__name__}.{kafkas_name(field.name)}"
            if not any(own.startswith(place) for own in OWN_DEFAULTS):
                assert getattr(read, field.name) == getattr(message, field.name), (what, field.name)


def without(fields: Any, what: What, names: Names) -> None:
    """Removes the fields in which klamm has defaults of its own."""
    for own in OWN_DEFAULTS:
        message, *path = own.split(".")
        if message != what.key.message_name + what.kind:
            continue
        items, place = [fields], message
        for step in path:
            place += f".{step}"
            name = names.get(place) or step
            if place == own:
                for item in items:
                    for known in (name, f"{name}SizeInBytes"):
                        item.pop(known, None)
            else:
                items = [element for item in items for element in item.get(name) or ()]


def test_kafka_2_8_has_the_same_defaults(kafka28: Kafka) -> None:
    compare_defaults(kafka28)


@pytest.mark.long
def test_kafka_4_4_has_the_same_defaults(kafka44: Kafka) -> None:
    compare_defaults(kafka44)


def test_error_codes_are_kafkas(kafka28: Kafka, kafka44: Kafka) -> None:
    assert {int(code): code.name for code in ErrorCode} == kafka44.errors
    assert kafka28.errors.items() <= kafka44.errors.items()


def test_every_version_has_an_oracle(kafka28: Kafka, kafka44: Kafka) -> None:
    """What neither Kafka knows was removed before 2.8, and is compared with kafka-python alone."""
    known = {*kafka28.known(ALL), *kafka44.known(ALL)}
    assert [str(what) for what in ALL if what not in known] == []
