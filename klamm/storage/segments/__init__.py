"""The files of a log: segments, their sparse indexes, checkpoints; which files stay open, and what a disk's errors
mean.
"""
