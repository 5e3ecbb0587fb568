"""Metrics of hosted partitions and of open transactions, under Kafka's names."""
