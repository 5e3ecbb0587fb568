"""ZooKeeper servers to test against, what comes between them and a client, and scenarios for any of them."""
