"""The controller: one broker of the cluster that decides which broker leads which partition.

An event comes from ZooKeeper, a request or a response (`events`, `event_manager`), and `event_flows` says which flow
processes it. A flow decides by pure functions of the `context` (`leader_election`, the tables in `states`), writes to
ZooKeeper, lets the context follow what was written, and then tells the brokers through `channels`. docs/architecture.md
has the steps of a failover and of a reassignment.
"""
