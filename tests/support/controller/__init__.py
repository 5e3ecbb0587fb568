"""The controller with klamm's ZooKeeper server, and brokers that only answer."""
