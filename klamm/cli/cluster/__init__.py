"""Commands about a whole cluster and its servers: start one, look at it, make trouble in it, record it."""
