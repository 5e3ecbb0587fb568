"""A broker's lifecycle. `broker` starts and stops the parts in Kafka's order, only `parts` creates them, and
`listeners` opens the sockets.
"""
