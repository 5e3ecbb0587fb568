"""Compares the replicas of partitions: the pure comparison, and the fetches from each replica."""
