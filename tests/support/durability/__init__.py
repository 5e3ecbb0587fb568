"""Clusters under load whose brokers are killed, and the checks of what they have kept."""
