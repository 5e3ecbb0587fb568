"""Compares the replicas of partitions: the pure comparison, and what fetches from each replica."""
