"""The client of a Kafka cluster that Spark, the commands, tests and benchmarks share."""
