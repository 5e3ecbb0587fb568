"""Logs in Kafka's format on disk, from a segment to all log directories of a broker. Nothing here knows leaders.

`segments` are files and indexes, `log` is one log, `compaction` cleans a log, `directories` has all logs of a broker,
and `verification` checks a log without a broker.
"""
