"""The machines of a simulated world: virtual time, an event loop, network, disks, processes that die, the trace."""
