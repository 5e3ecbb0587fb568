"""klamm's servers as processes: what forks, starts, watches and stops them, for the commands and for tests."""
