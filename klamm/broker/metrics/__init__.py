"""What a broker shows of itself over HTTP, under the names that Kafka's metrics have."""
