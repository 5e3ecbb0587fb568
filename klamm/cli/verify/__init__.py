"""`klamm verify replicas`: whether all replicas of partitions have the same records.

`command` is the command line with its three ways: through the brokers, on Spark, and `offline` in data directories. All
compare with `klamm.client.verification`. `report` says what was found: pure.
"""
