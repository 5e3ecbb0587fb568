"""Consumer groups at their coordinator. `group` is one group with its states as a table, pure; `rebalance` moves it
from one generation to the next; `group_metadata_manager` keeps the groups and their records; `group_coordinator`
carries out the requests.
"""
