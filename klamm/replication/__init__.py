"""The replicas that a broker hosts. `replica_manager` has all of them, and `state_changes` obeys the controller.

`partition` is one partition with its leader's work; `fetcher` copies partitions as a follower. ZooKeeper and the rest
of the broker are behind `ports`.
"""
