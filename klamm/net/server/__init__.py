"""The server side of connections: the order of a connection's requests and responses, and the limits that hold before
memory is spent.
"""
