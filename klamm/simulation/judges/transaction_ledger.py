"""The answers that transactional clients got in a simulated cluster. What must be true of them:

- Atomicity: either all records of a transaction are visible to read_committed consumers, in all partitions, or none is.
  All are visible if the commit was acknowledged. None is if the abort was acknowledged, or no commit was requested.
- The offsets of a group move with the records: in each partition, the visible transactions of the copiers follow each
  other without a gap from the first offset to the committed offset, and each visible input record is copied once.
- In a generation of the group a partition has one owner. In a cluster without faults a member loses its partitions only
  when its process stood still or it was late for its next poll.
- An offset is never visible before its client asked to commit the transaction. An acknowledged offset is never lost.
- Consumers with read_committed have read exactly the records that the log says are committed.
- The last stable offset is the first offset of the first transaction without a marker below the high watermark. So it
  is the same on all leaders with the same high watermark, and goes back only when the high watermark does.
- In a log, no marker of a coordinator comes after a marker of its successor.
- No producer commits a transaction that it began after its successor was initialized.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from klamm.client.producer.batches import NO_IDENTITY, Identity
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import NO_PRODUCER_ID, iterate_batches
from klamm.protocol.record.records import ControlRecordType, decode_end_transaction_marker, decode_records
from klamm.protocol.vocabulary import PartitionKey
from klamm.simulation.machine.process import SimulationFailure


class Outcome(Enum):
    """What is known of the end of a transaction."""

    OPEN = "was never to be committed"
    ENDING = "was to be committed"
    COMMITTED = "was committed"
    ABORTED = "was aborted"


class Copied(NamedTuple):
    """The offsets of an input partition whose visible records a transaction copies: from the offset of the first record
    up to the offset that the transaction commits. Both are equal if it copies no record of the partition."""

    partition: PartitionKey
    first_offset: int
    next_offset: int


@dataclass(slots=True)
class Transaction:
    """A transaction of one instance of a transactional id, which was initialized with `identity`. `values` are its
    records and their partitions.

    A value is b"NAME/NUMBER". The value of a copy is b"NAME/NUMBER=VALUE", with the copied value.
    """

    transactional_id: str
    identity: Identity
    name: str
    began_s: float
    copied: Sequence[Copied] = ()
    values: dict[bytes, PartitionKey] = field(default_factory=dict)
    outcome: Outcome = Outcome.OPEN

    def add(self, partition: PartitionKey, copy_of: bytes | None = None) -> bytes:
        """The value of a new record."""
        value = b"%s/%d" % (self.name.encode(), len(self.values))
        if copy_of is not None:
            value += b"=" + copy_of
        self.values[value] = partition
        return value

    def __str__(self) -> str:
        return f"transaction {self.name}, which {self.outcome.value},"


class Read(NamedTuple):
    """A record that a consumer has read."""

    offset: int
    value: bytes
    leader_epoch: int


class LogHistory:
    """The visible records of a log, and where its transactions begin and end."""

    def __init__(self, log: Buffer) -> None:
        self.visible: list[Read] = []
        self.hidden: dict[bytes, None] = {}
        # The first offset of each transaction, and the offset of its marker; infinite without a marker.
        self.transactions: list[tuple[int, float]] = []
        self.end = 0
        self.old_markers: list[str] = []
        coordinator_epochs: dict[int, int] = {}
        pending: dict[int, list[Read]] = {}
        for position, header in iterate_batches(log):
            self.end = header.next_offset
            if header.is_control:
                marker = decode_end_transaction_marker(log, position, header)
                ended = pending.pop(header.producer_id, [])
                if ended:
                    self.transactions.append((ended[0].offset, header.base_offset))
                assert marker is not None, f"a control batch without a marker: {header}"
                newest = coordinator_epochs.setdefault(header.producer_id, marker.coordinator_epoch)
                if marker.coordinator_epoch < newest:
                    self.old_markers.append(f"{marker} of producer {header.producer_id} at {header.base_offset}")
                coordinator_epochs[header.producer_id] = max(newest, marker.coordinator_epoch)
                if marker.type is ControlRecordType.COMMIT:
                    self.visible += ended
                else:
                    self.hidden.update(dict.fromkeys(read.value for read in ended))
                continue
            reads = [
                Read(record.offset, record.value or b"", header.partition_leader_epoch)
                for record in decode_records(log, position, header)
            ]
            if header.is_transactional:
                pending.setdefault(header.producer_id, []).extend(reads)
            else:
                self.visible += reads
        for reads in pending.values():
            self.transactions.append((reads[0].offset, math.inf))
            self.hidden.update(dict.fromkeys(read.value for read in reads))
        self.visible.sort()

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset of every replica with this high watermark."""
        undecided = [first for first, marker in self.transactions if marker >= high_watermark]
        return min([high_watermark, *undecided])


class TransactionLedger:
    """All answers to the transactional clients. `progress` is set with every acknowledged commit. With `has_faults`
    the cluster's faults may cost any member of the group its partitions."""

    def __init__(self, *, has_faults: bool) -> None:
        self._has_faults = has_faults
        self.transactions: list[Transaction] = []
        self.commits = 0
        self.progress = asyncio.Event()
        # When the newest instance of a transactional id learned that it was initialized, and with what.
        self._initialized: dict[str, tuple[Identity, float]] = {}
        # By partition: (high watermark, last stable offset).
        self._stable: dict[PartitionKey, dict[tuple[int, int], None]] = {}
        self._owners: dict[tuple[int, PartitionKey], str] = {}

    # -- told by clients ------------------------------------------------------------------------------------------

    def initialized(self, transactional_id: str, identity: Identity) -> None:
        newest, _ = self._initialized.get(transactional_id, (NO_IDENTITY, 0.0))
        assert newest.producer_id in (NO_PRODUCER_ID, identity.producer_id), f"{transactional_id} has a new producer id"
        assert identity.producer_epoch != newest.producer_epoch, f"{transactional_id} has got {identity} twice"
        if identity > newest:
            self._initialized[transactional_id] = identity, _now_s()

    def assigned(self, generation: int, member_id: str, partitions: Iterable[PartitionKey]) -> None:
        """A member has learned its partitions.

        Assignments before the first commit do not count: a group without offsets is forgotten when it is empty, and
        begins again with generation 1.
        """
        if not self.has_offsets:
            return
        for partition in partitions:
            owner = self._owners.setdefault((generation, partition), member_id)
            assert owner == member_id, f"generation {generation}: {owner} and {member_id} own {partition}"

    def lost(self, member_id: str, partitions: Iterable[PartitionKey], *, was_late: bool) -> None:
        """The group has given a member's partitions to others without asking it."""
        assert was_late or self._has_faults, f"{member_id} has lost {list(partitions)}, and was never late"

    def begin(self, transactional_id: str, identity: Identity, copied: Sequence[Copied] = ()) -> Transaction:
        name = f"{transactional_id}/{len(self.transactions)}"
        transaction = Transaction(transactional_id, identity, name, _now_s(), copied)
        self.transactions.append(transaction)
        return transaction

    def committed(self, transaction: Transaction) -> None:
        transaction.outcome = Outcome.COMMITTED
        newest, since_s = self._initialized[transaction.transactional_id]
        assert newest <= transaction.identity or transaction.began_s <= since_s, (
            f"{transaction} began at {transaction.began_s} s, and was fenced at {since_s} s: {newest} is newer than"
            f" {transaction.identity}"
        )
        self.commits += 1
        self.progress.set()

    @property
    def has_offsets(self) -> bool:
        """Whether a commit of offsets was acknowledged."""
        return any(each.copied and each.outcome is Outcome.COMMITTED for each in self.transactions)

    def acknowledged_offset(self, partition: PartitionKey) -> int:
        """The largest offset of the partition whose commit was acknowledged; -1 if none was."""
        return max(self._offsets(partition, Outcome.COMMITTED), default=-1)

    def offset_seen(self, partition: PartitionKey, offset: int, least: int = -1) -> None:
        """The group's coordinator says that this offset is committed; `least` had been acknowledged before."""
        possible = sorted({-1, *self._offsets(partition, Outcome.COMMITTED, Outcome.ENDING)})
        assert offset in possible, (
            f"{partition}: the offset {offset} is visible, and its client has not asked to commit the transaction;"
            f" {possible} may be"
        )
        assert offset >= least, f"{partition} is at {offset}; {least} had been acknowledged"

    def stable_seen(self, partition: PartitionKey, high_watermark: int, last_stable_offset: int) -> None:
        """A broker has answered with these two offsets."""
        assert last_stable_offset <= high_watermark, (
            f"{partition}: the last stable offset is {last_stable_offset} at the high watermark {high_watermark}"
        )
        self._stable.setdefault(partition, {})[high_watermark, last_stable_offset] = None

    def _offsets(self, partition: PartitionKey, *outcomes: Outcome) -> list[int]:
        return [copied.next_offset for copied in self._copied(partition, *outcomes)]

    def _copied(self, partition: PartitionKey, *outcomes: Outcome) -> list[Copied]:
        """The copies of a partition by transactions with these outcomes, in the order of their beginnings."""
        transactions = [each for each in self.transactions if each.outcome in outcomes]
        return [copied for each in transactions for copied in each.copied if copied.partition == partition]

    async def until_commits(self, count: int) -> None:
        """Waits until `count` more commits are acknowledged."""
        wanted = self.commits + count
        while self.commits < wanted:
            self.progress.clear()
            await self.progress.wait()

    # -- at the end: every transaction is decided, and nothing is produced ------------------------------------------

    def check_atomicity(self, histories: dict[PartitionKey, LogHistory]) -> None:
        """AssertionError unless each transaction is visible as a whole or not at all, as its client was told."""
        seen: Counter[tuple[bytes, PartitionKey]] = Counter()
        for key, history in histories.items():
            assert not history.old_markers, f"{key} has markers of former coordinators: {history.old_markers}"
            seen.update((read.value, key) for read in history.visible)
        for (value, key), count in seen.items():
            assert count == 1, f"{key} has {value!r} {count} times"
        for transaction in self.transactions:
            visible = [value for value, key in transaction.values.items() if seen.pop((value, key), 0)]
            if visible and transaction.outcome in (Outcome.OPEN, Outcome.ABORTED):
                raise AssertionError(f"{transaction} is visible: {visible}")
            is_whole = len(visible) == len(transaction.values)
            if transaction.outcome is Outcome.COMMITTED:
                assert is_whole, f"of {transaction} only {visible} of {list(transaction.values)} are visible"
            assert is_whole or not visible, f"{transaction} is visible in part: {visible} of {transaction.values}"
            if transaction.outcome is Outcome.ENDING:
                transaction.outcome = Outcome.COMMITTED if visible else Outcome.ABORTED
        assert not seen, f"there are records that no transaction has written: {list(seen)[:3]}"

    def check_copies(
        self,
        partition: PartitionKey,
        committed_offset: int,
        inputs: Sequence[Read],
        outputs: Iterable[Read],
    ) -> None:
        """AssertionError unless the group's offsets moved with the visible copies of an input partition, and each
        visible record up to there was copied once. Call it after `check_atomicity`."""
        position = 0
        for copied in sorted(self._copied(partition, Outcome.COMMITTED)):
            left_out = [read for read in inputs if position <= read.offset < copied.first_offset]
            assert copied.first_offset >= position and not left_out, (
                f"{copied} is committed, but the group was at {position}; left out are {left_out}"
            )
            position = copied.next_offset
        assert max(committed_offset, 0) == position, f"{partition} is at {committed_offset}, copied up to {position}"
        wanted = Counter(read.value for read in inputs if read.offset < position)
        copies = Counter(read.value.partition(b"=")[2] for read in outputs)
        found = Counter({value: count for value, count in copies.items() if value in {read.value for read in inputs}})
        assert found == wanted, f"{partition}: not copied are {wanted - found}, too often {found - wanted}"

    def check_stable_offsets(self, key: PartitionKey, history: LogHistory) -> None:
        """AssertionError unless each last stable offset that was seen is the one of its high watermark, or of a later
        one.

        The last stable offset may be that of a later high watermark: a former leader that becomes a follower takes the
        high watermark of the new leader, which may be lower, but still knows which transactions are decided.
        """
        stable = [history.last_stable_offset(each) for each in range(history.end + 1)]
        for high_watermark, seen in sorted(self._stable.get(key, {})):
            true = {min(high_watermark, each) for each in stable[high_watermark:]}
            assert seen in true, (
                f"{key}: the last stable offset was {seen} at the high watermark {high_watermark}; true is {true}"
            )


def check_reads(key: PartitionKey, reads: Sequence[Read], history: LogHistory) -> None:
    """AssertionError unless a consumer with read_committed has read all visible records, and no other."""
    for read in reads:
        assert read.value not in history.hidden, f"{key}: a read_committed consumer has read {read}, which was aborted"
    for read, visible in zip(reads, history.visible, strict=False):
        assert read == visible, f"{key}: a read_committed consumer has read {read}, the log has {visible}"
    assert len(reads) == len(history.visible), f"{key}: {len(reads)} of {len(history.visible)} visible records read"


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class TransactionsHang(SimulationFailure):
    """Transactions are still open when all must be decided."""
