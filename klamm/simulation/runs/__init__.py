"""Runs of random faults: what is left out in a run, when faults begin and end, damage to disks, and shrinking."""
