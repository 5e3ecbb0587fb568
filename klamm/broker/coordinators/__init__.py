"""What the coordinators of `klamm.coordinator` need of a broker: their logs, their topics, producer ids, and the way of
the markers that end transactions.
"""
