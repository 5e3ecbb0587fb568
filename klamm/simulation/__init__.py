"""The deterministic twin of a cluster: production code on virtual time, an in-memory network and in-memory disks.

`klamm.simulation.world.World` is the entrance. The same seed gives the same run, byte for byte (its `trace`), in every
process; a run fails when the code under test does, when nothing can happen any more, or when it leaves the seams
(`klamm.environment.Environment` and the running asyncio loop).
"""
