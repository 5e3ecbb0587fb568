"""A broker's knowledge of its cluster, and its connection to the controller. Readers of `metadata_cache` get immutable
snapshots.
"""
