"""What a broker knows of its cluster, and its way to the controller. Readers of `metadata_cache` get immutable
snapshots.
"""
