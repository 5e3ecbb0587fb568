"""Runs klamm's servers as processes: forks, starts, watches and stops them, for the commands and for tests."""
