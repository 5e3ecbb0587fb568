"""A value that one replica of a compacted topic has lost, found through brokers."""

from confluent_kafka import Producer

from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.client.verification.compare import Difference, Kind
from klamm.client.verification.verifier import VerifyOptions, partitions_to_verify, verify_replicas
from klamm.processes.helper import Helper
from klamm.testing.cluster import Cluster
from support.planted import drop_batch, first_segment

KEYS = 12


def test_a_lost_value_is_found_and_a_replaced_one_is_not(klamm_helper: Helper) -> None:
    with Cluster(2, helper=klamm_helper, properties={"log.cleaner.enable": "false"}) as cluster:
        cluster.create_topic("table", replication_factor=2, configs={"cleanup.policy": "compact"})
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 1, "acks": "all"})
        for number in range(2 * KEYS):
            # The second half replaces all values of the first half except that of the key 7.
            key = b"key-%d" % (number % KEYS) if number % KEYS != 7 else b"other-%d" % number
            producer.produce("table", b"%d" % number, key, partition=0)
        assert producer.flush(30) == 0
        cluster.stop(1)
        segment = first_segment(cluster.broker(1).data_directory, "table")
        drop_batch(segment, 7)
        drop_batch(segment, 3)
        cluster.start(1)
        cluster.until(lambda: 1 in cluster.isr("table"))
        host, port = cluster.bootstrap.split(",")[0].split(":")
        client = ClientOptions(((host, int(port)),))

        async def verify(cluster_client):
            planned = await partitions_to_verify(cluster_client, lambda name: name == "table")
            return await verify_replicas(cluster_client, planned.partitions, VerifyOptions())

        (check,) = call(client, verify)
        assert check.differences.found == [Difference(Kind.LOST, 7, 7, replica=1, other=0)]
        assert (check.position, check.compacted_batches) == (2 * KEYS, 2)
