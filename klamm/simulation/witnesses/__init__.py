"""Rules over what brokers do, looked at while it happens: states in ZooKeeper, deletions, events, generations of
groups.
"""
