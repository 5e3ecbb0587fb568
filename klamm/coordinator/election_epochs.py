"""The epochs of a coordinator's elections and resignations, by partition of its topic.

What must stay true: the controller's requests may come late or twice. A request with an older epoch than the newest
known epoch of its partition changes nothing.
"""

import logging

_log = logging.getLogger(__name__)


class ElectionEpochs:
    """The newest known epoch of each partition of `topic`."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._newest: dict[int, int] = {}

    def __getitem__(self, partition: int) -> int:
        return self._newest[partition]

    def elected(self, partition: int, epoch: int) -> bool:
        """Notes an election; False if it is outdated."""
        return self._note("an election", partition, epoch)

    def resigned(self, partition: int, epoch: int | None) -> bool:
        """Notes a resignation; False if it is outdated. None: the replica was removed, and its epoch is forgotten."""
        if epoch is None:
            self._newest.pop(partition, None)
            return True
        return self._note("a resignation", partition, epoch)

    def _note(self, what: str, partition: int, epoch: int) -> bool:
        newest = self._newest.get(partition, epoch)
        if epoch < newest:
            _log.info("ignored %s in epoch %d of %s-%d: the epoch is %d", what, epoch, self._topic, partition, newest)
            return False
        self._newest[partition] = epoch
        return True
