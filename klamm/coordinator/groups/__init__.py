"""Consumer groups at their coordinator. `group` is one group, pure, with its states as a table; `rebalance` moves it
from one generation to the next; `group_metadata_manager` keeps the groups and their records; `group_coordinator` has
the meaning of each request.
"""
