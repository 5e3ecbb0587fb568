"""The network of one broker under faults: connections that are cut, slow, or half open."""
