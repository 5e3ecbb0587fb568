"""Policies that may refuse new topics and changes of configurations (create.topic.policy.class.name,
alter.config.policy.class.name; KIP-108, KIP-133).

A policy is asked after everything else has been checked, and before anything is written, also when a request only
validates. The broker asks one question at a time, in a thread beside its loop, and waits for a limited time.

Source: org.apache.kafka.server.policy.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klamm.plugins.plugin import Plugin


class PolicyViolation(Exception):
    """A request violates the policy. The client gets POLICY_VIOLATION with this message."""


@dataclass(frozen=True, slots=True)
class NewTopicRequest:
    """A topic to be created. Where the client assigns replicas, `assignments` has those of each partition, and the
    counts are None; otherwise it is None. `configs` are the topic's own."""

    topic: str
    partitions: int | None
    replication_factor: int | None
    assignments: Mapping[int, Sequence[int]] | None
    configs: Mapping[str, str]


class CreateTopicPolicy(Plugin):
    """May refuse new topics, those that brokers create by themselves included."""

    @abstractmethod
    def validate(self, request: NewTopicRequest) -> None:
        """Raises PolicyViolation to refuse the topic."""


@dataclass(frozen=True, slots=True)
class AlterConfigRequest:
    """A change of the configuration of a topic or broker. `resource_type` is "TOPIC" or "BROKER"; a broker's name is
    its id, or empty for the default of all brokers. `configs` are the keys that the request names; None deletes one.
    """

    resource_type: str
    name: str
    configs: Mapping[str, str | None]


class AlterConfigPolicy(Plugin):
    """May refuse changes of configurations."""

    @abstractmethod
    def validate(self, request: AlterConfigRequest) -> None:
        """Raises PolicyViolation to refuse the change."""
