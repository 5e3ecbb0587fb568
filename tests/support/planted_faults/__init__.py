"""The proof that the simulation finds what it is for: builds of klamm with one planted fault each.

A planted fault replaces functions of klamm inside one Python process, and only while `PlantedFault.planted` lasts. The
seeds of the mixed random run must find it: a run with it fails, and the checker that `faults.FAULTS` names says so
(`hunt`). `python -m support.planted_faults` hunts all of them and prints the table of `docs/simulation.md`.

What must stay true: production code has no branch for a planted fault, and nothing outside this package imports one.
"""
