"""The versions of requests between brokers, which inter.broker.protocol.version implies. Pure.

From Kafka's `ControllerBrokerRequestBatch`, `KafkaServer.controlledShutdown`, `ReplicaFetcherThread` and
`TransactionMarkerChannelManager`. An older inter.broker.protocol.version than 2.4-IV0 is not supported.
"""

from klamm.config.versions import ApiVersion
from klamm.protocol.api_keys import ApiKey

# API -> (the first inter.broker.protocol.version, the request's version from there on), the newest first.
_VERSIONS: dict[ApiKey, tuple[tuple[ApiVersion, int], ...]] = {
    ApiKey.LEADER_AND_ISR: ((ApiVersion.V2_8_IV1, 5), (ApiVersion.V2_4_IV1, 4), (ApiVersion.V2_4_IV0, 3)),
    ApiKey.STOP_REPLICA: ((ApiVersion.V2_6_IV0, 3), (ApiVersion.V2_4_IV1, 2), (ApiVersion.V2_4_IV0, 1)),
    ApiKey.UPDATE_METADATA: ((ApiVersion.V2_8_IV1, 7), (ApiVersion.V2_4_IV1, 6), (ApiVersion.V2_4_IV0, 5)),
    ApiKey.CONTROLLED_SHUTDOWN: ((ApiVersion.V2_4_IV1, 3), (ApiVersion.V2_4_IV0, 2)),
    ApiKey.FETCH: ((ApiVersion.V2_7_IV1, 12), (ApiVersion.V2_4_IV0, 11)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ((ApiVersion.V2_8_IV0, 4), (ApiVersion.V2_4_IV0, 3)),
    ApiKey.WRITE_TXN_MARKERS: ((ApiVersion.V2_8_IV0, 1), (ApiVersion.V2_4_IV0, 0)),
    ApiKey.LIST_OFFSETS: ((ApiVersion.V2_8_IV0, 6), (ApiVersion.V2_4_IV0, 5)),
}


def inter_broker_version(api_key: ApiKey, protocol: ApiVersion) -> int:
    """The version in which a broker with this inter.broker.protocol.version sends the request to another broker.

    Raises KeyError for an API whose version does not depend on it.
    """
    return next(version for since, version in _VERSIONS[api_key] if protocol >= since)
