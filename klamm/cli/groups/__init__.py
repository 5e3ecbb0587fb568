"""`klamm groups`, kafka-consumer-groups' work: `groups` asks and changes, `group_resets` plans, `group_views` shows."""
