"""Which disk errors are transient, and which take a log directory offline.

- ENOSPC, EDQUOT: there is no space. The operation is refused, and succeeds again once there is space.
- EMFILE, ENFILE: this process, or the machine, has no file descriptor left. The operation is refused in the same way. A
  sync is tried again, too, because only the open of the file has failed.
- ENOMEM, EAGAIN, EINTR: the system had no memory, or was interrupted. The operation is refused in the same way, but a
  failed sync is final.
- Any other error: the disk does not work. The directory is offline for good, and its logs answer KAFKA_STORAGE_ERROR.

What must stay true: a sync that failed is never tried again, because the kernel may have dropped the data that it could
not write. An operation that changes files in several steps opens all of them before its first step.
"""

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
# The machine lacks a resource that other processes will return. The disk works and is not full.
SHORTAGES = (*NO_DESCRIPTORS, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
PASSING = (*NO_SPACE, *SHORTAGES)

# The time after which an operation that failed on a shortage is tried again.
SHORTAGE_BACK_OFF_MS = 1_000
