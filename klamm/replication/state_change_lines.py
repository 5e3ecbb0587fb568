"""The lines that a broker writes to state-change.log about the controller's requests.

The lines and their levels are Kafka's (`ReplicaManager`, `Partition`, `MetadataCache` of 2.8.2), word for word, so that
operators find the texts that they search for. As in Kafka, some lines at INFO name single partitions.

What must stay true: no line is formatted for a disabled level. TRACE has several lines for each partition, so a request
checks once whether TRACE is enabled.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from klamm.base.log_lines import BATCH, STATE_CHANGE_LOGGER, TRACE, LineBatch
from klamm.base.slices import Slices, Steps
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest
from klamm.protocol.apis.update_metadata import LEADER_DURING_DELETE, UpdateMetadataRequest, UpdateMetadataTopicState
from klamm.protocol.state_texts import flag, ids, leader_and_isr_text, stop_replica_text, update_metadata_text
from klamm.protocol.vocabulary import PartitionKey

OFFLINE_DIRECTORY = "as the local replica for the partition is in an offline log directory"


class Origin(NamedTuple):
    """The controller that sent a request, its epoch, and the request's correlation id."""

    correlation_id: int
    controller_id: int
    controller_epoch: int


class StateChangeLines:
    """The lines of broker `broker_id`."""

    def __init__(self, broker_id: int, now_ms: Callable[[], int]) -> None:
        self._batch = LineBatch(STATE_CHANGE_LOGGER, now_ms, f"[Broker id={broker_id}] ")

    def leader_and_isr(self, correlation_id: int, request: LeaderAndIsrRequest) -> "LeaderAndIsrLines":
        origin = Origin(correlation_id, request.controller_id, request.controller_epoch)
        return LeaderAndIsrLines(self._batch, origin)

    def stop_replica(self, origin: Origin) -> "StopReplicaLines":
        return StopReplicaLines(self._batch, origin)

    def update_metadata(self, correlation_id: int, request: UpdateMetadataRequest) -> "UpdateMetadataLines":
        origin = Origin(correlation_id, request.controller_id, request.controller_epoch)
        return UpdateMetadataLines(self._batch, origin)


class _RequestLines:
    """The lines of one request. The caller calls `flush` at the request's end."""

    def __init__(self, batch: LineBatch, origin: Origin) -> None:
        self._batch = batch
        self._correlation_id, self._controller_id, self._epoch = origin
        self._informs = batch.wants(logging.INFO)
        self.traces = batch.wants(TRACE)

    def flush(self) -> None:
        self._batch.flush()

    def _add(self, level: int, text: str) -> None:
        if self._batch.wants(level):
            self._batch.add(level, text)

    def _is_old(self, api: str, latest_epoch: int) -> None:
        self._add(
            logging.WARNING,
            f"Ignoring {api} request from controller {self._controller_id} with correlation id {self._correlation_id}"
            f" since its controller epoch {self._epoch} is old. Latest known controller epoch is {latest_epoch}",
        )

    def _ignored(self, level: int, what: str, key: PartitionKey, why: str) -> None:
        self._add(
            level,
            f"Ignoring {what} from controller {self._controller_id} with correlation id {self._correlation_id}"
            f" epoch {self._epoch} for partition {key[0]}-{key[1]} {why}",
        )


class LeaderAndIsrLines(_RequestLines):
    """The lines of a LeaderAndIsr request."""

    def received(self, request: LeaderAndIsrRequest) -> None:
        if not self._informs:
            return
        count = sum(len(topic.partition_states) for topic in request.topic_states)
        self._batch.add(
            logging.INFO,
            f"Handling LeaderAndIsr request correlationId {self._correlation_id} from controller {self._controller_id}"
            f" for {count} partitions",
        )

    def received_state(self, topic: str, state: LeaderAndIsrPartitionState) -> None:
        """To be called only if `traces`."""
        self._batch.add(TRACE, f"Received LeaderAndIsr request {leader_and_isr_text(topic, state)} {self._sender()}")

    def is_old(self, latest_epoch: int) -> None:
        self._is_old("LeaderAndIsr", latest_epoch)

    def offline(self, key: PartitionKey) -> None:
        self._ignored(logging.WARNING, "LeaderAndIsr request", key, OFFLINE_DIRECTORY)

    def not_assigned(self, key: PartitionKey, replicas: Iterable[int]) -> None:
        assigned = ",".join(map(str, replicas))
        self._ignored(
            logging.WARNING, "LeaderAndIsr request", key, f"as itself is not in assigned replica list {assigned}"
        )

    def stale(self, key: PartitionKey, leader_epoch: int, current: int) -> None:
        """The partition's state has arrived late, or twice."""
        if leader_epoch < current:
            why = f"since its associated leader epoch {leader_epoch} is smaller than the current leader epoch {current}"
            self._ignored(logging.WARNING, "LeaderAndIsr request", key, why)
        elif self._informs:
            # After a controller election this line is written for almost every partition.
            self._batch.add(
                logging.INFO,
                f"Ignoring LeaderAndIsr request from controller {self._controller_id} with correlation id"
                f" {self._correlation_id} epoch {self._epoch} for partition {key[0]}-{key[1]} since its associated"
                f" leader epoch {leader_epoch} matches the current leader epoch",
            )

    # -- leaders --------------------------------------------------------------------------------------------------

    def stopped_fetchers_of_leaders(self, count: int) -> None:
        if self._informs:
            self._batch.add(
                logging.INFO,
                f"Stopped fetchers as part of LeaderAndIsr request correlationId {self._correlation_id} from controller"
                f" {self._controller_id} epoch {self._epoch} as part of the become-leader transition for {count}"
                " partitions",
            )

    def becoming_leader(self, key: PartitionKey) -> None:
        """To be called only if `traces`."""
        self._batch.add(TRACE, f"Handling {self._request()} starting the become-leader transition for {_name(key)}")

    def leader_starts(
        self,
        key: PartitionKey,
        state: LeaderAndIsrPartitionState,
        offset: int,
        high_watermark: int,
        previous_epoch: int,
    ) -> None:
        if self._informs:
            self._batch.add(
                logging.INFO,
                f"Leader {key[0]}-{key[1]} starts at leader epoch {state.leader_epoch} from offset {offset} with high"
                f" watermark {high_watermark} ISR {ids(state.isr)} addingReplicas {ids(state.adding_replicas)}"
                f" removingReplicas {ids(state.removing_replicas)}. Previous leader epoch was {previous_epoch}.",
            )

    def led_already(self, key: PartitionKey, state: LeaderAndIsrPartitionState) -> None:
        if self._informs:
            self._batch.add(
                logging.INFO,
                "Skipped the become-leader state change after marking its partition as leader with"
                f" {self._sender()} for {_name(key)} (last update controller epoch {state.controller_epoch}) since it"
                " is already the leader for the partition.",
            )

    def cannot_lead(self, key: PartitionKey, state: LeaderAndIsrPartitionState, error: Exception) -> None:
        self._add(
            logging.ERROR,
            f"Skipped the become-leader state change with {self._sender()} for {_name(key)} (last update controller"
            f" epoch {state.controller_epoch}) since the replica for the partition is offline due to disk error"
            f" {error}",
        )

    def leads(self, key: PartitionKey) -> None:
        """To be called only if `traces`."""
        self._batch.add(TRACE, f"Completed {self._request()} for the become-leader transition for {_name(key)}")

    # -- followers ------------------------------------------------------------------------------------------------

    def becoming_follower(self, key: PartitionKey, leader: int) -> None:
        """To be called only if `traces`."""
        text = f"Handling {self._request()} starting the become-follower transition for {_name(key)}"
        self._batch.add(TRACE, f"{text} with leader {leader}")

    def follower_starts(
        self, key: PartitionKey, leader_epoch: int, offset: int, high_watermark: int, previous_epoch: int
    ) -> None:
        if self._informs:
            self._batch.add(
                logging.INFO,
                f"Follower {key[0]}-{key[1]} starts at leader epoch {leader_epoch} from offset {offset} with high"
                f" watermark {high_watermark}. Previous leader epoch was {previous_epoch}.",
            )

    def stopped_fetchers_of_followers(self, count: int) -> None:
        if self._informs:
            self._batch.add(
                logging.INFO,
                f"Stopped fetchers as part of become-follower request from controller {self._controller_id} epoch"
                f" {self._epoch} with correlation id {self._correlation_id} for {count} partitions",
            )

    def leader_is_not_alive(self, key: PartitionKey, state: LeaderAndIsrPartitionState) -> None:
        self._add(
            logging.ERROR,
            f"Received LeaderAndIsrRequest with {self._sender()} for {_name(key)} (last update controller epoch"
            f" {state.controller_epoch}) but cannot become follower since the new leader {state.leader} is"
            " unavailable.",
        )

    def cannot_follow(self, key: PartitionKey, state: LeaderAndIsrPartitionState, error: Exception) -> None:
        self._add(
            logging.ERROR,
            f"Skipped the become-follower state change with {self._sender()} for {_name(key)} (last update controller"
            f" epoch {state.controller_epoch}) with leader {state.leader} since the replica for the partition is"
            f" offline due to disk error {error}",
        )

    def does_not_fetch(self, key: PartitionKey, leader: int) -> None:
        """The broker is about to stop. To be called only if `traces`."""
        self._batch.add(
            TRACE,
            f"Skipped the adding-fetcher step of the become-follower state change with {self._sender()} for"
            f" {_name(key)} with leader {leader} since it is shutting down",
        )

    def follows(self, key: PartitionKey, leader: int) -> None:
        """To be called only if `traces`."""
        text = f"Completed {self._request()} for the become-follower transition for {_name(key)} with leader {leader}"
        self._batch.add(TRACE, text)

    # -- the end --------------------------------------------------------------------------------------------------

    def finished(self, count: int, elapsed_ms: int) -> None:
        if self._informs:
            self._batch.add(
                logging.INFO,
                f"Finished LeaderAndIsr request in {elapsed_ms}ms correlationId {self._correlation_id} from controller"
                f" {self._controller_id} for {count} partitions",
            )

    def _request(self) -> str:
        return (
            f"LeaderAndIsr request correlationId {self._correlation_id} from controller {self._controller_id} epoch"
            f" {self._epoch}"
        )

    def _sender(self) -> str:
        return f"correlation id {self._correlation_id} from controller {self._controller_id} epoch {self._epoch}"


class StopReplicaLines(_RequestLines):
    """The lines of a StopReplica request."""

    def received(self, stops: Mapping[PartitionKey, tuple[int, bool]]) -> None:
        """`stops`: partition -> (leader epoch, whether to delete it)."""
        if self._informs:
            self._batch.add(
                logging.INFO,
                f"Handling StopReplica request correlationId {self._correlation_id} from controller"
                f" {self._controller_id} for {len(stops)} partitions",
            )

    def stopping(self, key: PartitionKey, leader_epoch: int, delete: bool) -> None:
        """To be called only if `traces`."""
        self._batch.add(
            TRACE,
            f"Received StopReplica request {stop_replica_text(key[1], leader_epoch, delete)} correlation id"
            f" {self._correlation_id} from controller {self._controller_id} epoch {self._epoch} for {_name(key)}",
        )

    def is_old(self, latest_epoch: int) -> None:
        self._is_old("StopReplica", latest_epoch)

    def offline(self, key: PartitionKey, delete: bool) -> None:
        self._ignored(logging.WARNING, _stop_replica(delete), key, OFFLINE_DIRECTORY)

    def stale(self, key: PartitionKey, leader_epoch: int, current: int, delete: bool) -> None:
        why = f"since its associated leader epoch {leader_epoch} is smaller than the current leader epoch {current}"
        self._ignored(logging.WARNING, _stop_replica(delete), key, why)

    def cannot_delete(self, key: PartitionKey) -> None:
        self._ignored(logging.ERROR, _stop_replica(True), key, OFFLINE_DIRECTORY)


class UpdateMetadataLines(_RequestLines):
    """The lines of an UpdateMetadata request."""

    def is_old(self, latest_epoch: int) -> None:
        self._add(
            logging.WARNING,
            f"Received update metadata request with correlation id {self._correlation_id} from an old controller"
            f" {self._controller_id} with epoch {self._epoch}. Latest known controller epoch is {latest_epoch}",
        )

    def cached(self, request: UpdateMetadataRequest) -> Steps[None]:
        """The metadata cache has applied the request. In steps, because TRACE writes a line for every partition."""
        if not (self._informs and request.topic_states):
            return
        source = (
            f"in response to UpdateMetadata request sent by controller {self._controller_id} epoch {self._epoch} with"
            f" correlation id {self._correlation_id}"
        )
        added = deleted = 0
        for topic in request.topic_states:
            gone = sum(state.leader == LEADER_DURING_DELETE for state in topic.partition_states)
            deleted += gone
            added += len(topic.partition_states) - gone
            if self.traces:
                yield from self._cached_states(topic, source)
        self._batch.add(
            logging.INFO, f"Add {added} partitions and deleted {deleted} partitions from metadata cache {source}"
        )

    def _cached_states(self, topic: UpdateMetadataTopicState, source: str) -> Steps[None]:
        slices = Slices(BATCH)
        for state in topic.partition_states:
            name = _name((topic.topic_name, state.partition_index))
            if state.leader == LEADER_DURING_DELETE:
                self._batch.add(TRACE, f"Deleted {name} from metadata cache {source}")
            else:
                text = f"Cached leader info {update_metadata_text(topic.topic_name, state)} for {name} {source}"
                self._batch.add(TRACE, text)
            if slices.spend():
                yield


def _name(key: PartitionKey) -> str:
    return f"partition {key[0]}-{key[1]}"


def _stop_replica(delete: bool) -> str:
    return f"StopReplica request (delete={flag(delete)})"
