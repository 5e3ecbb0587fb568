"""Configurations, typed: `broker_keys` and `topic` have every key of Kafka 2.8, `definition` what a key is. `dynamic`
judges changes while a broker runs, and `current` hands them on.
"""
