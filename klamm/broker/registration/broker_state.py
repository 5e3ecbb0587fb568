"""The states of a broker, with the numbers of Kafka's metric BrokerState."""

from enum import IntEnum


class BrokerState(IntEnum):
    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2  # Loads its logs.
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6  # Hands its leaderships over.
    SHUTTING_DOWN = 7
