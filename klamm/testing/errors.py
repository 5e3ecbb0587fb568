"""What goes wrong with a cluster under test."""


class ClusterError(Exception):
    """The cluster is not in the state that was asked for; the message says what was found instead."""


class NotInTime(ClusterError, AssertionError):
    """A condition did not come true in time; the message says what was seen last.

    It is an AssertionError too: for a test, this is a failed expectation.
    """
