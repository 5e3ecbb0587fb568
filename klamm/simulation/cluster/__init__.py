"""A cluster in a simulated world: brokers, an ensemble of ZooKeeper servers, and witnesses of each broker's actions."""
