"""`klamm topics`: kafka-topics' work on any Kafka cluster, over the wire protocol or on the znodes.

`plans` says what a command will do, `klamm.diagnosis` what a topic looks like and why a partition is not healthy: pure
functions of plain values. `over_brokers` and `over_znodes` read these values and carry the plans out. `commands` is the
command line.
"""
