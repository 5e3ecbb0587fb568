"""Which failures of the disk pass by themselves, and which take a log directory offline.

- ENOSPC, EDQUOT: there is no room. The operation is refused, and succeeds again when there is some.
- EMFILE, ENFILE: this process, or the machine, has no file descriptor left. The same; a sync is tried again too,
  because what failed was opening the file.
- ENOMEM, EAGAIN, EINTR: the system had no memory, or was interrupted. The same, but a failed sync is a failure.
- Any other: the disk does not work. The directory is offline for good, and answers KAFKA_STORAGE_ERROR.

What must stay true: after a sync that failed nothing is tried again, because the kernel may have dropped what it could
not write. Whatever changes files in several steps opens them before the first of these.
"""

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
# The machine is short of something that others give back; the disk is in order, and not full.
SHORTAGES = (*NO_DESCRIPTORS, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
PASSING = (*NO_SPACE, *SHORTAGES)
