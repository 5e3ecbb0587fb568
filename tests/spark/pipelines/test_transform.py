"""The example of a pipeline does what it says."""

import json

from klamm.spark.pipelines.transform import transform
from support.spark.producing import produce, sale
from support.spark.reading import read


def test_totals(spark, cluster, topic, tmp_path):
    source, target = topic(), topic()

    def run():
        options = {"kafka.bootstrap.servers": cluster.bootstrap}
        query = transform(spark, options, source, target, str(tmp_path / "checkpoint"))
        assert query.awaitTermination(120)
        return {message.key().decode(): json.loads(message.value()) for message in read(cluster, target)[0]}

    produce(
        cluster.bootstrap,
        source,
        [
            sale("tea", 2.5, "10:00:07"),
            sale("tea", 1.5, "10:00:59"),
            sale("tea", 8, "10:01:00"),
            sale("milk", 1, "10:00:00"),
            {"value": b"no JSON"},
            {"value": b'{"product": "tea"}'},
            {"value": None},
        ],
    )
    assert run() == {}
    # It is not too late for one, and then it is.
    produce(cluster.bootstrap, source, [sale("tea", 1, "10:00:30"), sale("tea", 1, "10:11:30")])
    tea = {"product": "tea", "begin": "2024-05-01T10:00:00.000Z", "total": 5.0, "sales": 3}
    milk = {**tea, "product": "milk", "total": 1.0, "sales": 1}
    assert run() == {"tea@2024-05-01T10:00:00Z": tea, "milk@2024-05-01T10:00:00Z": milk}
    produce(cluster.bootstrap, source, [sale("tea", 100, "10:00:31"), sale("tea", 1, "11:00:00")])
    found = run()
    assert len(found) == 4
    assert found["tea@2024-05-01T10:00:00Z"] == tea
    assert found["tea@2024-05-01T10:01:00Z"]["total"] == 8.0
