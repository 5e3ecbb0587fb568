"""Policies and replica selectors as an operator writes them, for the tests of brokers that load them by name."""

import threading
from collections.abc import Mapping
from typing import cast

from klamm.plugins.policies import (
    AlterConfigPolicy,
    AlterConfigRequest,
    CreateTopicPolicy,
    NewTopicRequest,
    PolicyViolation,
)
from klamm.plugins.replica_selection import ClientMetadata, PartitionView, ReplicaSelector, ReplicaView

# What the policies below were asked, and what they wait for when a topic is called "slow".
asked: list[NewTopicRequest | AlterConfigRequest] = []
may_answer = threading.Event()


class Unspeakable(PolicyViolation):
    def __str__(self) -> str:
        raise ZeroDivisionError("the message has a fault")


class AtMostThreePartitions(CreateTopicPolicy):
    """The limit is a property of the policy's own."""

    limit = 3

    def configure(self, properties: Mapping[str, str]) -> None:
        self.limit = int(properties.get("partition.limit", self.limit))

    def validate(self, request: NewTopicRequest) -> None:
        asked.append(request)
        if request.topic == "slow":
            may_answer.wait(120)
        if request.topic == "raises":
            raise ZeroDivisionError("the policy has a fault")
        if request.topic == "exits":
            raise SystemExit(3)
        if request.topic == "verbose":
            raise PolicyViolation("no\ud800" * 100_000)
        if request.topic == "unspeakable":
            raise Unspeakable
        if request.topic == "changed":
            cast(dict[str, str], request.configs)["retention.ms"] = "never"
            for replicas in (request.assignments or {}).values():
                cast(list[int], replicas).append(99)
        partitions = request.partitions or len(request.assignments or ())
        if partitions > self.limit:
            raise PolicyViolation(f"{request.topic} has {partitions} partitions; allowed are {self.limit}")


class KeepsADay(AlterConfigPolicy):
    def validate(self, request: AlterConfigRequest) -> None:
        asked.append(request)
        for key in ("retention.ms", "log.retention.ms"):
            value = request.configs.get(key)
            if value is not None and int(value) < 86_400_000:
                raise PolicyViolation(f"{key} of {request.name} is less than a day")


class HasNoSettings(CreateTopicPolicy):
    def configure(self, properties: Mapping[str, str]) -> None:
        raise ValueError("partition.limit is missing")

    def validate(self, request: NewTopicRequest) -> None:
        """Never called."""


class Exits(CreateTopicPolicy):
    def configure(self, properties: Mapping[str, str]) -> None:
        raise SystemExit(0)

    def validate(self, request: NewTopicRequest) -> None:
        """Never called."""


class LastReplica(ReplicaSelector):
    """Selects the last of the replicas for clients of the rack "any"."""

    def select(self, client: ClientMetadata, partition: PartitionView) -> ReplicaView | None:
        return partition.replicas[-1] if client.rack_id == "any" else None
