"""ZooKeeper without Kafka: messages and their codec, pure; `client`, and `server`, which is embedded where no ensemble
is.
"""
