"""A broker: the composition root, one module for each API under `handlers`, and the parts that these use.

`start` assembles, starts and stops a broker. `requests` leads from a frame to its response. The other rooms are the
parts that handlers use: `metadata`, `topics`, `configs`, `quotas`, `coordinators`, `registration`, `metrics`. In
addition, `metadata_updates` changes several of them at once, and all handlers share `request_errors`.
"""
