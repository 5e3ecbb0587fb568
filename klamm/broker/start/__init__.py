"""A broker's life. `broker` starts and stops the parts in Kafka's order; `parts` alone makes them; `listeners` opens
the sockets.
"""
