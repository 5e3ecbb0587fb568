"""`klamm reassign`: plans and executes moves of partitions between brokers and log directories."""
