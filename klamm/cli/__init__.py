"""The command line `klamm`: one module or package for each command, and what several of them share."""
