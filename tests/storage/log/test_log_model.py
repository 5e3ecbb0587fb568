"""A log against a model of it: any sequence of appends, truncations, retention, flushes, restarts and crashes."""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from klamm.storage.log.log_config import LogConfig
from support.logs import NOW_MS, DiskEnvironment, append, batch, open_log, read_all, records_in

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=120, retention_bytes=1500)


class LogMachine(RuleBasedStateMachine):
    """`batches` is the model: (offset, epoch, values) of each batch that must be there, below `end`."""

    @initialize(seed=st.integers(0, 10_000))
    def start(self, seed):
        self.environment = DiskEnvironment(seed=seed)
        self.log = open_log(self.environment, CONFIG)
        self.batches = []
        self.start_offset = self.end = 0
        self.epoch = 0
        self.sequence = 0
        self.durable_recovery_point = 0
        self.durable_start = 0
        # What the log held before a truncation that is not durable yet.
        self.undone = []

    def records(self, batches=None):
        batches = self.batches if batches is None else batches
        return [(offset + i, value) for offset, _, values in batches for i, value in enumerate(values)]

    def settled(self):
        """Everything so far, truncations included, is durable."""
        self.undone = []

    @rule(values=st.lists(st.binary(max_size=60), min_size=1, max_size=4), producer=st.booleans())
    def append_as_leader(self, values, producer):
        header = {"producer_id": 3, "producer_epoch": self.epoch, "base_sequence": self.sequence} if producer else {}
        info = append(self.log, *values, leader_epoch=self.epoch, timestamp_ms=NOW_MS + self.end, **header)
        assert (info.first_offset, info.oddity) == (self.end, None)
        self.batches.append((self.end, self.epoch, values))
        self.end += len(values)
        self.sequence += len(values) if producer else 0
        self.settled()

    @rule(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=8))
    def append_as_follower(self, sizes):
        sent = {}
        for size in sizes:
            values = [b"f"] * size
            sent[self.end] = batch(*values, base_offset=self.end, partition_leader_epoch=self.epoch)
            self.batches.append((self.end, self.epoch, values))
            self.end += size
        # An append that syncs the log, here one that follows a truncation, may leave the rest to the next fetch.
        while sent:
            info = self.log.append_as_follower(b"".join(sent.values()))
            assert info.first_offset in sent
            sent = {offset: data for offset, data in sent.items() if offset > info.last_offset}
        self.settled()

    @rule(back=st.integers(0, 40))
    def truncate(self, back):
        target = max(self.start_offset, self.end - back)
        self.undone.append(self.batches)
        self.log.truncate_to(target)
        self.batches = [entry for entry in self.batches if entry[0] + len(entry[2]) <= target]
        self.end = self.batches[-1][0] + len(self.batches[-1][2]) if self.batches else min(self.end, target)
        assert self.log.log_end_offset <= target
        self.end = self.log.log_end_offset
        # As the manager does: the recovery point on disk must not promise what is gone.
        self.durable_recovery_point = min(self.durable_recovery_point, self.log.recovery_point)
        self.epoch += 1
        self.sequence = 0

    @rule()
    def delete_old_segments(self):
        self.log.update_high_watermark(self.end)
        self.log.delete_old_segments(NOW_MS)
        self.start_offset = self.log.log_start_offset
        self.durable_start = max(self.durable_start, self.start_offset)

    @rule()
    def flush_and_checkpoint(self):
        asyncio.run(self.log.flush())
        self.durable_recovery_point = self.log.recovery_point
        self.durable_start = self.start_offset
        self.settled()

    @rule(meanwhile=st.sampled_from(("nothing", "append", "flush", "truncate")))
    def preallocate(self, meanwhile):
        actions = {
            "nothing": lambda: None,
            "append": lambda: [self.append_as_leader([b"m" * 60] * 4, False) for _ in range(4)],
            "flush": lambda: self.log.durability.flush_now(0),
            "truncate": lambda: self.truncate(5),
        }
        self.environment.before_blocking = actions[meanwhile]
        asyncio.run(self.log.preallocate())
        self.environment.before_blocking = None

    @rule()
    def release(self):
        asyncio.run(self.log.release_unused())

    @rule(is_clean=st.booleans())
    def restart(self, is_clean):
        if is_clean:
            asyncio.run(self.log.close())
            self.durable_recovery_point = self.log.recovery_point
            self.durable_start = self.start_offset
            self.settled()
        self.reopen(is_clean)
        assert self.log.log_end_offset == self.end

    @rule()
    def machine_dies(self):
        flushed = self.durable_recovery_point
        self.environment.disk.crash(lose_unsynced=True)
        self.reopen(is_clean=False)
        kept = self.log.log_end_offset
        assert flushed <= kept
        self.end = kept
        found = asyncio.run(read_all(self.log))
        for history in (self.batches, *self.undone):
            batches = [entry for entry in history if entry[0] < kept]
            if found == [record for record in self.records(batches) if record[0] >= self.start_offset]:
                self.batches = batches
                break
        else:
            raise AssertionError(f"the log has become {found}")
        self.undone = []
        self.epoch += 1
        self.sequence = 0

    def reopen(self, is_clean):
        point = self.durable_recovery_point
        start = self.durable_start
        self.log = open_log(self.environment, CONFIG, is_clean=is_clean, recovery_point=point, log_start_offset=start)
        assert self.log.log_start_offset >= start
        self.start_offset = self.log.log_start_offset

    @invariant()
    def holds_what_the_model_holds(self):
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end
        expected = [record for record in self.records() if record[0] >= self.start_offset]
        assert asyncio.run(read_all(self.log, max_bytes=250)) == expected
        epochs = {}
        for offset, epoch, values in self.batches:
            if offset + len(values) > self.start_offset:
                epochs.setdefault(epoch, max(offset, self.start_offset))
        assert list(self.log.leader_epochs.entries) == list(epochs.items())

    @rule(data=st.data())
    def read_somewhere(self, data):
        offset = data.draw(st.integers(self.start_offset, self.end))
        bound = data.draw(st.integers(offset, self.end))
        size = data.draw(st.integers(0, 1000))
        whole = data.draw(st.booleans())
        fetched = asyncio.run(self.log.read(offset, size, max_offset=bound, minimum_one_batch=whole))
        found = records_in(fetched.data)
        assert all(at < bound for at, _ in found)
        first = max((entry[0] for entry in self.batches if entry[0] <= offset), default=self.end)
        expected = [record for record in self.records() if record[0] >= first]
        assert found == expected[: len(found)]
        assert len(fetched.data) <= size or (whole and len({at for at, _ in found}) <= 4)


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
