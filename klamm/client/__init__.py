"""The one client of a cluster: Spark, the commands, `klamm.testing`, the simulator's operators and a cluster's
readiness stand on it.

`cluster` holds the connections and the metadata, and repeats what failed for a moment. `fan_out` makes one request for
each leader, coordinator or broker out of many items. A function for many items returns a result for each: a value, or
the `KafkaError` of that item. When no broker could be asked at all, it raises `ClientError`. `sender` is below every
producer, `fetching` below every consumer; `admin` has what operators do; `verification` compares replicas.
"""
