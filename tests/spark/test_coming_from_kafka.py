"""Options that people copy from pages and programs for Spark's own connector: they work, or one sentence helps."""

from dataclasses import dataclass

import pytest

from klamm.spark.options import OptionError, read_options, write_options

SERVERS = {"kafka.bootstrap.servers": "broker-1.example.com:9093,broker-2.example.com:9093"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
PASSWORD = "p4ssw0rd"
CONFLUENT = {
    **SERVERS,
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": f"{PLAIN} required username='KEY' password='{PASSWORD}';",
}


@dataclass(frozen=True)
class Snippet:
    """`told` is None where the options work; else it is part of the one sentence."""

    options: dict[str, str]
    told: str | None = None
    is_stream: bool = True
    is_writer: bool = False


READ = {**SERVERS, "subscribe": "orders"}

SNIPPETS = {
    "Spark's guide, a stream": Snippet(READ),
    "Spark's guide, JSON offsets": Snippet(
        {
            **SERVERS,
            "subscribe": "topic1,topic2",
            "startingOffsets": '{"topic1":{"0":23,"1":-2},"topic2":{"0":-2}}',
            "endingOffsets": '{"topic1":{"0":50,"1":-1},"topic2":{"0":-1}}',
        },
        is_stream=False,
    ),
    "Spark's guide, a pattern": Snippet(
        {**SERVERS, "subscribePattern": "topic.*", "startingOffsets": "earliest", "endingOffsets": "latest"},
        is_stream=False,
    ),
    "a consumer's tuning": Snippet(
        {
            **READ,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "10000",
            "minPartitions": "10",
            "kafka.group.id": "my-group",
            "groupIdPrefix": "spark",
            "kafka.session.timeout.ms": "30000",
            "kafka.heartbeat.interval.ms": "10000",
            "kafka.max.poll.records": "500",
            "kafka.max.poll.interval.ms": "300000",
            "kafka.max.partition.fetch.bytes": "10485760",
            "kafka.fetch.min.bytes": "1",
            "kafka.fetch.max.wait.ms": "500",
            "kafka.request.timeout.ms": "60000",
            "kafka.connections.max.idle.ms": "540000",
            "kafka.metadata.max.age.ms": "1000",
            "kafka.client.rack": "use1-az1",
            "kafka.isolation.level": "read_committed",
            "kafka.partition.assignment.strategy": "range",
        }
    ),
    "Confluent Cloud": Snippet({**CONFLUENT, "subscribe": "t", "kafka.ssl.endpoint.identification.algorithm": "https"}),
    "Databricks, Confluent Cloud": Snippet(
        {
            **CONFLUENT,
            "subscribe": "t",
            "kafka.sasl.jaas.config": f'kafkashaded.{PLAIN} required username="KEY" password="{PASSWORD}";',
        }
    ),
    "Azure Event Hubs with a connection string": Snippet(
        {
            **CONFLUENT,
            "subscribe": "t",
            "kafka.request.timeout.ms": "60000",
            "kafka.sasl.jaas.config": f'kafkashaded.{PLAIN} required username="$ConnectionString"'
            f' password="Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey={PASSWORD}=";',
        }
    ),
    "Azure Event Hubs with Entra ID, of Databricks' pages": Snippet(
        {
            **READ,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.microsoft.com/tenant/oauth2/v2.0/token",
            "kafka.sasl.jaas.config": f'kafkashaded.{OAUTH}.OAuthBearerLoginModule required clientId="c"'
            f' clientSecret="{PASSWORD}" scope="https://x.servicebus.windows.net/.default" ssl.protocol="SSL";',
            "kafka.sasl.login.callback.handler.class": f"kafkashaded.{OAUTH}.secured.OAuthBearerLoginCallbackHandler",
        }
    ),
    "Cloudera, a login with more than Kafka reads": Snippet(
        {
            **CONFLUENT,
            "subscribe": "t",
            "kafka.sasl.jaas.config": f'{PLAIN} required serviceName="kafka" username="u" password="{PASSWORD}"'
            " debug=true;",
        }
    ),
    "a JKS store with its password": Snippet(
        {
            **READ,
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": "/etc/trust.jks",
            "kafka.ssl.truststore.password": PASSWORD,
        },
        "kafka.ssl.truststore.password is not supported: a PEM store has no password",
    ),
    "a JKS store by its type": Snippet(
        {**READ, "kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "JKS"},
        "A JKS or PKCS12 store becomes one with: keytool",
    ),
    "Amazon MSK with IAM": Snippet(
        {
            **READ,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "AWS_MSK_IAM",
            "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        },
        "kafka.sasl.mechanism is 'AWS_MSK_IAM'; allowed: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
    ),
    "Amazon MSK's handler": Snippet(
        {**READ, "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler"},
        "is not supported: the mechanisms are PLAIN",
    ),
    "Kerberos": Snippet(
        {**READ, "kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.kerberos.service.name": "kafka"},
        "kafka.sasl.kerberos.service.name is not supported: the mechanisms are PLAIN",
    ),
    "Databricks' service credential": Snippet(
        {**READ, "databricks.serviceCredential": "c"}, "it is of Databricks' own connector; log in with kafka.sasl.*"
    ),
    "librdkafka's names": Snippet(
        {**CONFLUENT, "subscribe": "t", "kafka.sasl.password": PASSWORD}, "the credentials are in sasl.jaas.config"
    ),
    "librdkafka's authority": Snippet(
        {**READ, "kafka.security.protocol": "SSL", "kafka.ssl.ca.location": "/ca.pem"},
        "the name is ssl.truststore.location",
    ),
    "a name without its prefix": Snippet({**READ, "auto.offset.reset": "earliest"}, "did you mean kafka.auto.offset"),
    "servers without their prefix": Snippet(
        {"bootstrap.servers": "a:1", "subscribe": "t"}, "did you mean kafka.bootstrap.servers?"
    ),
    "a consumer's offset reset": Snippet(
        {**READ, "kafka.auto.offset.reset": "earliest"}, "say where to begin with the option startingOffsets"
    ),
    "auto commit": Snippet({**READ, "kafka.enable.auto.commit": "true"}, "Spark keeps the offsets"),
    "a deserializer": Snippet(
        {**READ, "kafka.value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer"},
        "cast the column value after reading",
    ),
    "the topic of a writer": Snippet({**SERVERS, "topic": "t"}, "exactly one of the options assign, subscribe"),
    "an option of files": Snippet({**READ, "maxFilesPerTrigger": "1"}, "the limit is in offsets, maxOffsetsPerTrigger"),
    "a batch from latest": Snippet(
        {**READ, "startingOffsets": "latest"}, "a batch query cannot begin at latest", is_stream=False
    ),
    "a stream with an end": Snippet({**READ, "endingOffsets": "latest"}, "a streaming query has no end"),
    "two selections": Snippet({**READ, "assign": '{"t":[0]}'}, "exactly one of the options"),
    "Spark's guide, a writer": Snippet({**SERVERS, "topic": "topic1", "checkpointLocation": "/c"}, is_writer=True),
    "a producer's tuning": Snippet(
        {
            **SERVERS,
            "topic": "t",
            "kafka.acks": "1",
            "kafka.retries": "3",
            "kafka.linger.ms": "10",
            "kafka.batch.size": "16384",
            "kafka.buffer.memory": "33554432",
            "kafka.compression.type": "snappy",
            "kafka.max.request.size": "10485760",
            "kafka.max.block.ms": "60000",
            "kafka.max.in.flight.requests.per.connection": "1",
            "kafka.delivery.timeout.ms": "120000",
            "includeHeaders": "true",
        },
        is_writer=True,
    ),
    "an idempotent producer": Snippet(
        {**SERVERS, "topic": "t", "kafka.enable.idempotence": "true", "kafka.acks": "all"}, is_writer=True
    ),
    "a producer for old brokers": Snippet(
        {**SERVERS, "topic": "t", "kafka.enable.idempotence": "false"}, is_writer=True
    ),
    "an idempotent producer that waits for nobody": Snippet(
        {**SERVERS, "topic": "t", "kafka.enable.idempotence": "true", "kafka.acks": "0"},
        "needs acks=all",
        is_writer=True,
    ),
    "a serializer": Snippet(
        {**SERVERS, "topic": "t", "kafka.key.serializer": "org.apache.kafka.common.serialization.StringSerializer"},
        "cast the column key before writing",
        is_writer=True,
    ),
    "a partitioner": Snippet(
        {**SERVERS, "topic": "t", "kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"},
        "give the partition in the column partition",
        is_writer=True,
    ),
    "transactions": Snippet(
        {**SERVERS, "topic": "t", "kafka.transactional.id": "x"},
        "needs the option checkpointLocation",
        is_writer=True,
    ),
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_options_that_people_copy(name: str) -> None:
    snippet = SNIPPETS[name]

    def use() -> object:
        if snippet.is_writer:
            return write_options(snippet.options)
        return read_options(snippet.options, streaming=snippet.is_stream)

    if snippet.told is None:
        assert PASSWORD not in repr(use())
        return
    with pytest.raises(OptionError) as caught:
        use()
    told = str(caught.value)
    assert snippet.told in told
    assert PASSWORD not in told
    assert "\n" not in told
