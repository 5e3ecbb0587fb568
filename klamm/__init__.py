"""klamm: a replicated log cluster that speaks Apache Kafka's protocol, its metadata in ZooKeeper as in Kafka 2.8."""

__version__ = "0.1.0"
