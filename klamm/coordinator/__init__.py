"""Consumer groups and transactions at their coordinators. Both append through `ports`, and know no logs or sockets."""
