"""A broker: the composition root, one module for each API under `handlers`, and the parts that these use.

`start` puts a broker together and stops it. `requests` leads from a frame to its response. The other rooms are the
parts that handlers work on: `metadata`, `topics`, `configs`, `quotas`, `coordinators`, `registration`, `metrics`. On
top stand `metadata_updates`, which changes several of them at once, and `request_errors`, which all handlers share.
"""
