"""The files of a log: segments, their sparse indexes, and checkpoints; open files; disk errors."""
