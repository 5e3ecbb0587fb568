"""klamm: a replicated log cluster that speaks Apache Kafka's protocol and keeps its metadata in ZooKeeper as Kafka 2.8 does."""

__version__ = "0.1.0"
