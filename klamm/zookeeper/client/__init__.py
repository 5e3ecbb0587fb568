"""The ZooKeeper client: one session, kept alive over as many connections as necessary."""
