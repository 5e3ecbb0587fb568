"""From a frame to its response: `dispatcher` decodes, calls the handler in the table of `registry`, and encodes.
Handlers see a `Request` and, through it, `services`, but no sockets.
"""
