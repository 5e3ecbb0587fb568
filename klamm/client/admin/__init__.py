"""The operators' requests to a cluster, with one module for each subject, as in Kafka's Admin."""
