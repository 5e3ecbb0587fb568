"""The deterministic twin of a cluster: production code on virtual time, an in-memory network and in-memory disks.

`klamm.simulation.machine.world.World` is the entrance. The same seed gives the same run, byte for byte (its `trace`),
in every process. A run fails when the code under test fails, when no event is left while a task still waits, or when
the code leaves the seams (`klamm.base.environment.Environment` and the running asyncio loop).
"""
