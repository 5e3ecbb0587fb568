"""Kafka's znodes: path and JSON of each, pure, and typed reads and writes over a session."""
