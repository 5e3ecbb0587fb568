"""`klamm elect`: kafka-leader-election's work, in batches that wait until the cluster has settled.

`klamm.diagnosis.election_plans` decides which partitions are elected and what an unclean election loses. `batches`
carries a plan out; `over_brokers` and `over_znodes` are its two ways to the cluster. `commands` is the command line.
"""
