"""`klamm elect`: kafka-leader-election's work, in batches that wait until the cluster has settled.

`plans` decides which partitions are elected and what an unclean election loses: pure functions of plain values.
`batches` carries a plan out; `over_wire` and `on_znodes` are its two ways to the cluster. `commands` is the command
line.
"""
