"""All logs of a broker: their directories, loading at the start, checkpoints, the cleaner's choice, moves between
directories.
"""
