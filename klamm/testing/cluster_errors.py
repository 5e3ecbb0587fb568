"""Errors of a cluster under test."""


class ClusterError(Exception):
    """The cluster is not in the requested state; the message describes the actual state."""


class ClusterEnded(ClusterError):
    """The cluster has ended, or has not started."""


class NotInTime(ClusterError, AssertionError):
    """A condition did not become true in time; the message says what was seen last.

    It is an AssertionError too: for a test, this is a failed expectation.
    """
