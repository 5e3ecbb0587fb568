"""From a frame to its response: `dispatcher` decodes, asks the handler of the table in `registry`, and encodes.
Handlers see a `Request` and, through it, `services`; they see no sockets.
"""
