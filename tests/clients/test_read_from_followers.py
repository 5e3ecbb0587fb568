"""Consumers with a client.rack read from the follower in their rack, on brokers as processes (KIP-392)."""

from pathlib import Path

import pytest

from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.clients import Librdkafka, Record
from support.rack_readers import RackReader

RACKS = {0: "a", 1: "b", 2: "c"}
# The two ways to name a selector.
SELECTORS = {
    "java": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "librdkafka": "klamm.plugins.replica_selection:RackAwareReplicaSelector",
}
LEADER = -1


@pytest.mark.parametrize("reader", SELECTORS)
def test_a_consumer_reads_from_the_follower_in_its_rack_while_it_lives(
    klamm_helper: Helper, reader: str, kafka_jars: Path, tmp_path: Path
) -> None:
    racks = {broker_id: {"broker.rack": rack} for broker_id, rack in RACKS.items()}
    with Cluster(
        3, properties={"replica.selector.class": SELECTORS[reader]}, broker_properties=racks, helper=klamm_helper
    ) as cluster:
        cluster.create_topic("t")
        leader = cluster.leader("t")
        assert leader is not None
        follower = (leader + 1) % 3
        readers = {
            replica: RackReader(reader, kafka_jars, tmp_path, cluster.bootstrap, "t", rack=RACKS[replica], count=3001)
            for replica in (leader, follower)
        }

        def produce_and_read(count: int, *, reads_from: int) -> None:
            Librdkafka.write(cluster.bootstrap, "t", [Record(b"value")] * 1000)
            readers[follower].wait_until(reads_from, count)
            readers[leader].wait_until(LEADER, count)

        try:
            produce_and_read(1000, reads_from=follower)
            cluster.kill(follower)
            produce_and_read(2000, reads_from=LEADER)
            cluster.start(follower)
            cluster.until(lambda: follower in cluster.isr("t"))
            produce_and_read(3000, reads_from=follower)
            # A reader may have read everything before it says which replica it reads from, so it waits for one more.
            Librdkafka.write(cluster.bootstrap, "t", [Record(b"last")])
            for each in readers.values():
                each.finish()
        finally:
            for each in readers.values():
                each.kill()
