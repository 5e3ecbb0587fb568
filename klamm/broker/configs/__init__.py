"""The configurations of brokers and topics: reading, altering, and following their changes in ZooKeeper."""
