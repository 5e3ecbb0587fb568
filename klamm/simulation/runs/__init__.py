"""Runs of random faults: which faults a run has, when they begin and end, damage to disks, and shrinking."""
