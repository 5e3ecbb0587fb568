"""`klamm verify replicas`: checks that all replicas of a partition have the same records.

`command` is the command line with its three ways: through the brokers, on Spark, and `offline` in data directories. All
compare with `klamm.client.verification`. `report` makes the output, and is pure.
"""
