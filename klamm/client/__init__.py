"""The one client of a cluster, for Spark, the commands, `klamm.testing`, the simulator's operators and readiness
checks.

`cluster` holds the connections and the metadata, and retries transient failures. `fan_out` sends many items in one
request for each leader, coordinator or broker. A function for many items returns a result for each: a value, or the
`KafkaError` of that item. If no broker can be asked at all, it raises `ClientError`. The
packages have the names of Kafka's: every producer uses `producer.sender`, every consumer `consumer.fetching`, and
`admin` has the requests of operators; `verification` compares replicas.
"""
