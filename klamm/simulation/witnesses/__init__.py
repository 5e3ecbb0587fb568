"""Rules for the actions of brokers, checked at the moment of the action: states in ZooKeeper, deletions, events,
generations of groups.
"""
