"""Options: their values, and the errors for wrong ones."""

import contextlib
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.client.properties import PropertyError, parse_addresses
from klamm.net.security import SaslOptions, SecurityOptions, TlsOptions
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import TopicPartition
from klamm.spark.options import (
    Bound,
    Limit,
    OptionError,
    Topics,
    includes_headers,
    read_options,
    write_options,
)

SERVERS = {"kafka.bootstrap.servers": "a:1"}
ONCE = {"kafka.transactional.id": " Orders-1 ", "checkpointLocation": "s3a://bucket/c"}
READ = {**SERVERS, "subscribe": "t"}


def test_defaults_are_those_of_sparks_connector() -> None:
    batch = read_options(READ, streaming=False)
    stream = read_options(READ, streaming=True)
    assert batch.topics == Topics(subscribe=("t",))
    assert batch.client.bootstrap == (("a", 1),)
    assert (batch.starting.bound, batch.starting.all, batch.starting.each) == (Bound.OFFSETS, -2, None)
    assert (stream.starting.bound, stream.starting.all, stream.starting.each) == (Bound.OFFSETS, -1, None)
    assert (batch.ending.bound, batch.ending.all) == (Bound.OFFSETS, -1)
    assert batch.fail_on_data_loss
    assert not batch.fetch.read_committed
    assert not batch.include_headers
    assert batch.min_partitions is batch.max_records_per_partition is None
    assert batch.max_offsets_per_trigger is batch.min_offsets_per_trigger is batch.commit_to_group is None
    assert batch.max_trigger_delay_ms == 900_000


def test_names_are_case_insensitive_and_values_are_used() -> None:
    options = read_options(
        {
            "KAFKA.bootstrap.servers": " a:1 , [::1]:2,",
            "Assign": '{"t": [1, 0], "s": [3]}',
            "STARTINGOFFSETS": '{"t": {"0": 5, "1": -2}, "s": {"3": 7}}',
            "endingoffsets": '{"t": {"0": 9, "1": -1}, "s": {"3": 7}}',
            "failOnDataLoss": "FALSE",
            "includeHeaders": "true",
            "minPartitions": "4",
            "maxRecordsPerPartition": "1000",
            "maxOffsetsPerTrigger": "20",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2m",
            "kafkaConsumer.pollTimeoutMs": "77",
            "fetchOffset.numRetries": "0",
            "fetchOffset.retryIntervalMs": "1",
            "startingOffsetsByTimestampStrategy": "latest",
            "commitOffsets": "true",
            "groupIdPrefix": "p",
            "kafka.group.id": "g",
            "kafka.client.id": "me",
            "kafka.isolation.level": "read_committed",
            "kafka.request.timeout.ms": "11",
            "kafka.default.api.timeout.ms": "12",
            "kafka.socket.connection.setup.timeout.ms": "13",
            "kafka.fetch.max.bytes": "14",
            "kafka.fetch.max.wait.ms": "0",
            "kafka.session.timeout.ms": "without effect",
            "topic": "a writer's",
        },
        streaming=False,
    )
    t0, t1, s3 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("s", 3)
    assert options.topics == Topics(assign=(s3, t0, t1))
    assert options.starting == Limit(Bound.OFFSETS, each=((s3, 7), (t0, 5), (t1, -2)), option="startingOffsets")
    assert options.ending == Limit(Bound.OFFSETS, each=((s3, 7), (t0, 9), (t1, -1)), option="endingOffsets")
    assert options.client.bootstrap == (("a", 1), ("::1", 2))
    assert (options.client.client_id, options.client.request_timeout_ms) == ("me", 11)
    assert (options.client.retry_timeout_ms, options.client.connect_timeout_ms) == (12, 13)
    assert (options.fetch.fetch_max_bytes, options.fetch.fetch_max_wait_ms, options.fetch.poll_timeout_ms) == (
        14,
        0,
        77,
    )
    assert options.fetch.read_committed
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert (options.min_partitions, options.max_records_per_partition) == (4, 1000)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (20, 10)
    assert (options.max_trigger_delay_ms, options.no_match_is_latest) == (120_000, True)
    assert (options.fetch_offset_retries, options.fetch_offset_retry_interval_ms) == (0, 1)
    assert options.commit_to_group == "g"
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options.client) == hash(pickle.loads(pickle.dumps(options.client)))


def test_of_the_options_for_where_to_begin_the_timestamp_for_all_counts_first() -> None:
    options = {
        **READ,
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t": {"0": 6}}',
        "startingOffsets": "earliest",
    }
    assert read_options(options, streaming=True).starting == Limit(Bound.TIMESTAMPS, all=5, option="startingTimestamp")
    del options["startingTimestamp"]
    assert read_options(options, streaming=True).starting == Limit(
        Bound.TIMESTAMPS, each=((TopicPartition("t", 0), 6),), option="startingOffsetsByTimestamp"
    )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"startingOfsets": "latest"}, "did you mean startingOffsets?"),
        ({"pathe": "x"}, "unknown option pathe; allowed: allow"),
        ({"kafka.bootstrap.server": "a:1"}, "did you mean kafka.bootstrap.servers?"),
        ({"kafka.bootstrap.servers": "a"}, "'a' is not of the form host:port"),
        ({"kafka.bootstrap.servers": "a:99999"}, "'a:99999' is not of the form host:port"),
        ({"kafka.bootstrap.servers": ","}, "names no broker; allowed: host:port"),
        ({"kafka.auto.offset.reset": "latest"}, "not supported: say where to begin with the option startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "not supported: keys are binary"),
        ({"kafka.value.deserializer": "x"}, "not supported: values are binary"),
        ({"kafka.enable.auto.commit": "true"}, "not supported: Spark keeps the offsets"),
        ({"kafka.interceptor.classes": "x"}, "not supported: there are no interceptors"),
        ({"kafka.security.protocol": "TLS"}, "option kafka.security.protocol is 'TLS'; allowed: PLAINTEXT, SSL, SASL"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "option kafka.sasl.mechanism has no effect with security.protocol=PLAINTE"),
        ({"kafka.ssl.truststore.password": "x"}, "option kafka.ssl.truststore.password is not supported: a PEM store"),
        ({"kafka.sasl.kerberos.service.name": "x"}, "not supported: the mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SH"),
        ({"kafka.ssl.truststore": "x"}, "unknown option kafka.ssl.truststore; did you mean kafka.ssl.truststore.type?"),
        ({"assign": "{}"}, "exactly one of the options assign, subscribe, subscribePattern must be given"),
        ({"subscribe": " , "}, "option subscribe is ','; allowed: topic,topic,..."),
        ({"startingOffsets": "first"}, "is 'first'; allowed: earliest, latest, JSON like"),
        ({"startingOffsets": "latest"}, "a batch query cannot begin at latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "has -1 for t-0: a batch query cannot begin at latest"),
        ({"endingOffsets": "earliest"}, "a batch query cannot end at earliest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "has -2 for t-0: a batch query cannot end at earliest"),
        ({"startingOffsets": '{"t": {"x": 1}}'}, "is 'x'; allowed: a number from 0"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "has True for t-0; allowed: numbers from -2"),
        ({"startingOffsets": '{"t": 5}'}, "has 5 for topic t; allowed: JSON like"),
        ({"startingOffsets": "{}"}, "names no partition"),
        ({"startingOffsets": "{"}, "is '{'; allowed: JSON like"),
        ({"startingTimestamp": "yesterday"}, "is 'yesterday'; allowed: a number from 0"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "has -1 for t-0; allowed: numbers from 0"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "is 'earliest'; allowed: error, latest"),
        (
            {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 4}}'},
            "t-0 begins at 5 (startingOffsets) and ends at 4 (endingOffsets)",
        ),
        (
            {"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"1": 6}}'},
            "must name the same partitions, not so: t-0, t-1",
        ),
        ({"failOnDataLoss": "maybe"}, "is 'maybe'; allowed: true, false"),
        ({"minPartitions": "0"}, "is '0'; allowed: a number from 1 to 2147483647"),
        ({"maxRecordsPerPartition": "1.5"}, "is '1.5'; allowed: a number from 1"),
        ({"maxTriggerDelay": "soon"}, "is 'soon'; allowed: a number with a unit of ms, s, m, h or d"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "(9) is larger than maxOffsetsPerTrigger (8)"),
        ({"commitOffsets": "true"}, "needs kafka.group.id"),
        ({"kafka.isolation.level": "dirty"}, "is 'dirty'; allowed: read_uncommitted, read_committed"),
    ],
)
def test_a_wrong_option_of_a_reader_is_named_with_what_is_allowed(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({**READ, **wrong}, streaming=False)
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["{}", '{"t": [-1]}', '{"t": 3}', '{"t": [true]}', "t", "[]", '{"t": []}'])
def test_a_wrong_assignment_is_told(text: str) -> None:
    with pytest.raises(OptionError, match=r'allowed: JSON like \{"topic"'):
        read_options({**SERVERS, "assign": text}, streaming=True)


@pytest.mark.parametrize("text", ["", "a(", "*"])
def test_a_wrong_pattern_is_told(text: str) -> None:
    with pytest.raises(OptionError, match="regular expression"):
        read_options({**SERVERS, "subscribePattern": text}, streaming=True)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} is for batch queries"):
        read_options({**READ, name: "5"}, streaming=True)


def test_without_brokers_or_topics() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers is missing"):
        read_options({"subscribe": "t"}, streaming=False)
    with pytest.raises(OptionError, match="must be given; given: none of them"):
        read_options(SERVERS, streaming=False)


def test_options_of_a_writer() -> None:
    options = write_options(
        {
            **SERVERS,
            "topic": " t ",
            "checkpointLocation": "somewhere",
            "startingOffsets": "a reader's",
            "kafka.acks": "-1",
            "kafka.compression.type": "ZSTD",
            "kafka.batch.size": "1",
            "kafka.max.request.size": "2",
            "kafka.buffer.memory": "3",
            "kafka.delivery.timeout.ms": "4",
            "kafka.linger.ms": "5",
        }
    )
    producer = options.producer
    assert (options.topic, producer.compression) == ("t", CompressionType.ZSTD)
    assert (producer.batch_size_bytes, producer.max_request_size_bytes) == (1, 2)
    assert (producer.buffer_memory_bytes, producer.delivery_timeout_ms) == (3, 4)
    assert write_options(SERVERS).topic is None
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "acks", "is_idempotent"),
    [
        ({}, -1, True),
        ({"kafka.acks": "ALL"}, -1, True),
        ({"kafka.acks": "1"}, 1, False),
        ({"kafka.acks": "0"}, 0, False),
        ({"kafka.enable.idempotence": "False"}, -1, False),
    ],
)
def test_a_writer_without_all_acks_is_not_idempotent(given: dict[str, str], acks: int, is_idempotent: bool) -> None:
    producer = write_options({**SERVERS, **given}).producer
    assert (producer.acks, producer.enable_idempotence) == (acks, is_idempotent)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"topic": ""}, "option topic is empty"),
        ({"kafka.acks": "2"}, "option kafka.acks is '2'; allowed: all, -1, 1, 0"),
        ({"kafka.enable.idempotence": "no"}, "is 'no'; allowed: true, false"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, "idempotence is 'true', which needs acks=all"),
        ({"kafka.compression.type": "rar"}, "is 'rar'; allowed: none, gzip, snappy, lz4, zstd"),
        ({"kafka.key.serializer": "x"}, "not supported"),
        ({"kafka.transactional.id": "x"}, "needs the option checkpointLocation, where the writer keeps"),
        ({"kafka.transactional.id": "x", "checkpointLocation": " "}, "needs the option checkpointLocation"),
        ({"kafka.transactional.id": " ", "checkpointLocation": "/c"}, "is empty; leave it out to write at least once"),
        ({**ONCE, "kafka.acks": "1"}, "needs kafka.acks=all and kafka.enable.idempotence=true"),
        ({**ONCE, "kafka.enable.idempotence": "false"}, "needs kafka.acks=all and kafka.enable.idempotence=true"),
        ({**ONCE, "kafka.transaction.timeout.ms": "0"}, "timeout.ms is '0'; allowed: a number from 1 to 2147483647"),
        ({**ONCE, "kafka.transaction.timeout.ms": str(2**31)}, "allowed: a number from 1 to 2147483647"),
    ],
)
def test_a_wrong_option_of_a_writer_is_named_with_what_is_allowed(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        write_options({**SERVERS, **wrong})
    assert told in str(caught.value)


def test_a_writer_with_a_transactional_id() -> None:
    options = write_options({**SERVERS, **ONCE})
    assert (options.producer.transactional_id, options.checkpoint) == ("Orders-1", "s3a://bucket/c")
    assert options.producer.transaction_timeout_ms == 900_000
    options = write_options({**SERVERS, **ONCE, "kafka.transaction.timeout.ms": "60000"})
    assert options.producer.transaction_timeout_ms == 60_000
    # The same options serve a reader, and Kafka's producers ignore the timeout where there is no transactional id.
    read_options({**SERVERS, **ONCE, "subscribe": "t"}, streaming=True)
    without = write_options({**SERVERS, "checkpointLocation": "/c", "kafka.transaction.timeout.ms": "60000"})
    assert (without.producer.transactional_id, without.checkpoint) == (None, None)


def test_security_is_that_of_readers_and_writers() -> None:
    secured = {
        "kafka.security.protocol": "sasl_ssl",
        "KAFKA.SASL.MECHANISM": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": ' a.b.ScramLoginModule required username="alice" password="secret"; ',
        "kafka.ssl.truststore.location": "/trust.pem",
        "kafka.ssl.key.password": "secret",
        "kafka.ssl.keystore.location": "/key.pem",
    }
    expected = SecurityOptions(
        TlsOptions(truststore_path="/trust.pem", keystore_path="/key.pem", key_password="secret"),
        SaslOptions("SCRAM-SHA-512", "alice", "secret"),
    )
    for options in (
        read_options({**READ, **secured}, streaming=False),
        read_options({**READ, **secured}, streaming=True),
        write_options({**SERVERS, **secured}).producer,
    ):
        assert options.client.security == expected
        assert "secret" not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(OptionError, match=r"^option kafka\.sasl\.jaas\.config, at its end: .* is missing") as caught:
        read_options(
            {**READ, **secured, "kafka.sasl.jaas.config": 'ScramLoginModule required a="secret"'}, streaming=True
        )
    assert "secret" not in str(caught.value)


def test_the_documentation_has_every_option_and_no_other() -> None:
    """What a table names in its first column is an option, and what the messages allow is in a table."""
    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    # The tables of pipelines have the keys of their files.
    documented = {
        name
        for line in text.partition("\n## Pipelines\n")[0].splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    }
    with pytest.raises(OptionError) as caught:
        read_options({"nonsense": ""}, streaming=False)
    own = set(str(caught.value).rpartition("allowed: ")[2].split(", ")) - {"kafka.*"}
    with pytest.raises(OptionError) as caught:
        read_options({"kafka.nonsense": ""}, streaming=False)
    passed = set(str(caught.value).rpartition("allowed: ")[2].split(", "))
    assert {name for name in documented if not name.startswith("kafka.")} == own
    assert passed <= documented
    for name in documented - own - passed - {"kafka.*"}:
        with pytest.raises(OptionError, match="is not supported"):
            read_options({name: "x"}, streaming=False)


def test_headers_are_asked_for_before_anything_else_is_known() -> None:
    assert includes_headers({"includeheaders": "true"})
    assert not includes_headers({})
    with pytest.raises(OptionError, match="allowed: true, false"):
        includes_headers({"includeHeaders": "1"})


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        ["assign", "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "maxTriggerDelay"]
    ),
    st.text() | st.sampled_from(["[" * 2000, '{"t": {"0": 1e400}}', '{"t": {"0": NaN}}', '{"t": {"٣": 1}}', "{" * 99]),
    st.booleans(),
)
def test_garbage_is_an_option_error(name: str, text: str, streaming: bool) -> None:
    try:
        read_options({**(SERVERS if name == "assign" else READ), name: text}, streaming=streaming)
    except OptionError as error:
        assert name in str(error)


@given(st.text())
def test_garbage_is_no_address(text: str) -> None:
    with contextlib.suppress(PropertyError):
        assert all(host and 0 < port < 65536 for host, port in parse_addresses("kafka.bootstrap.servers", text))
