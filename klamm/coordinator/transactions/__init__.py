"""Transactions at their coordinator. `transaction` is what is known of one transactional id and what each request makes
of it, pure, with the table in `states`; `state_manager` keeps them and their records; `marker_manager` brings their
ends to the partitions; `coordinator` has the meaning of each request.
"""
