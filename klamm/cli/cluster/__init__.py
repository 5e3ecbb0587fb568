"""Commands about a whole cluster and its servers: start a cluster, look at it, inject faults into it, record it."""
