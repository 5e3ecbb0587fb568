"""A broker's metrics and status over HTTP, under the names of Kafka's metrics."""
