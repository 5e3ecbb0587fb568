"""ZooKeeper without Kafka: messages and their codec, pure; `client`; and `server`, embedded where there is no
ensemble.
"""
