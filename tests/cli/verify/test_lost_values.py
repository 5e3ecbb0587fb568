"""A value that one replica of a compacted topic has lost, found through brokers."""

from klamm.client.threads import call
from klamm.client.verification.compare import Difference, DifferenceKind
from klamm.client.verification.verifier import VerifyOptions, partitions_to_verify, verify_replicas
from klamm.processes.helper import Helper
from klamm.protocol.record.records import Record
from klamm.testing.cluster import Cluster
from support.placed_topics import create, options_of, wait_until_committed, write_batches
from support.planted import drop_batch, first_segment

KEYS = 12
OFFSETS = range(2 * KEYS)


def test_a_lost_value_is_found_and_a_replaced_one_is_not(klamm_helper: Helper) -> None:
    with Cluster(2, helper=klamm_helper, properties={"log.cleaner.enable": "false"}) as cluster:
        create(cluster, "table", [[0, 1]], {"cleanup.policy": "compact"})
        # The second half replaces all values of the first half except that of the key 7.
        keys = [b"other-%d" % number if number % KEYS == 7 else b"key-%d" % (number % KEYS) for number in OFFSETS]
        write_batches(cluster, "table", [[Record(keys[number], b"%d" % number)] for number in OFFSETS])
        cluster.stop(1)
        segment = first_segment(cluster.broker(1).data_directory, "table")
        drop_batch(segment, 7)
        drop_batch(segment, 3)
        cluster.start(1)
        cluster.until(lambda: 1 in cluster.isr("table"))
        # A replica that has only just come back and lags is not waited for.
        wait_until_committed(cluster, "table", 1, len(OFFSETS))

        async def verify(cluster_client):
            planned = await partitions_to_verify(cluster_client, lambda name: name == "table")
            return await verify_replicas(cluster_client, planned.partitions, VerifyOptions())

        (check,) = call(options_of(cluster), verify)
        assert check.differences.found == [Difference(DifferenceKind.LOST, 7, 7, replica=1, other=0)]
        assert (check.position, check.compacted_batches) == (len(OFFSETS), 2)
