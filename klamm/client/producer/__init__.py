"""Writing records. Every producer uses `sender`; `transactions` tells coordinators of what a transaction has."""
