"""The quotas of users, clients and IP addresses (Kafka's QuotaConfigs): keys, types, allowed values. Pure."""

from dataclasses import dataclass

from klamm.config.definition import DOUBLE_MAX, INT_MAX, LONG_MAX, ConfigDef, at_least, double, integer, long


@dataclass(frozen=True, kw_only=True)
class ClientQuotaKeys:
    """The quotas of users, of clients, and of the clients of a user."""

    producer_byte_rate: int = long(LONG_MAX, "Bytes per second that may be produced.", at_least(0))
    consumer_byte_rate: int = long(LONG_MAX, "Bytes per second that may be fetched.", at_least(0))
    request_percentage: float = double(DOUBLE_MAX, "Percentage of a thread's time for requests.", at_least(0))
    controller_mutation_rate: float = double(DOUBLE_MAX, "Partitions created and deleted per second.", at_least(0))


@dataclass(frozen=True, kw_only=True)
class IpQuotaKeys:
    """The quota of an IP address."""

    connection_creation_rate: int = integer(INT_MAX, "Connections accepted per second.", at_least(0))


# Unlike other configs, quotas are written with underscores.
CLIENT_QUOTAS = ConfigDef(ClientQuotaKeys, separator="_")
IP_QUOTAS = ConfigDef(IpQuotaKeys, separator="_")
