"""The parts of a broker that the coordinators of `klamm.coordinator` need: their logs, their topics, producer ids, and
the sending and appending of transaction markers.
"""
