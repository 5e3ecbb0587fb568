"""The state-change.log files of all brokers, as one history. Pure, except for `files`, which reads them."""
