"""`klamm verify replicas`: whether all replicas of partitions have the same records."""
