"""`klamm log`: merge state-change logs, print the files of logs, verify data directories. No broker is needed."""
