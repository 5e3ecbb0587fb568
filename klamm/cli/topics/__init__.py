"""`klamm topics`: does the work of kafka-topics on any Kafka cluster, over the wire protocol or on the znodes.

`plans` decides what a command will do. `klamm.diagnosis` describes topics, and why a partition is not healthy. Both are
pure functions of plain values. `over_brokers` and `over_znodes` read these values and carry the plans out. `commands`
is the command line.
"""
