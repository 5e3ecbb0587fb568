"""What clients and operators do in a simulated cluster: records, groups, transactions, deletions, administration."""
