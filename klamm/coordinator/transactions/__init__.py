"""Transactions at their coordinator. `transaction` decides what a request does to one transactional id, by the table in
`states`; both are pure. `state_manager` keeps the transactional ids and their records, `marker_manager` has transaction
markers written to the partitions, and `coordinator` carries out the requests.
"""
