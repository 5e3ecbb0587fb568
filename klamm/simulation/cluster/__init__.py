"""A cluster in a simulated world: brokers, an ensemble of ZooKeeper servers, and what each broker is seen to do."""
