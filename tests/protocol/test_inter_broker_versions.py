"""The versions of requests between brokers, against what Kafka 2.8.2 sends."""

import pytest

from klamm.config.versions import ApiVersion
from klamm.protocol.inter_broker_versions import inter_broker_version
from klamm.protocol.messages import ADVERTISED_MAX, ApiKey

# fmt: off
EXPECTED = [
    # LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, Fetch, OffsetForLeaderEpoch, ListOffsets
    ("2.4-IV0", (3, 1, 5, 2, 11, 3, 5)),
    ("2.4-IV1", (4, 2, 6, 3, 11, 3, 5)),
    ("2.5-IV0", (4, 2, 6, 3, 11, 3, 5)),
    ("2.6-IV0", (4, 3, 6, 3, 11, 3, 5)),
    ("2.7-IV0", (4, 3, 6, 3, 11, 3, 5)),
    ("2.7-IV1", (4, 3, 6, 3, 12, 3, 5)),
    ("2.7-IV2", (4, 3, 6, 3, 12, 3, 5)),
    ("2.8-IV0", (4, 3, 6, 3, 12, 4, 6)),
    ("2.8-IV1", (5, 3, 7, 3, 12, 4, 6)),
]
# fmt: on
KEYS = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.FETCH,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.LIST_OFFSETS,
)


@pytest.mark.parametrize(("protocol", "versions"), EXPECTED)
def test_versions(protocol, versions):
    assert tuple(inter_broker_version(key, ApiVersion.parse(protocol)) for key in KEYS) == versions


def test_every_protocol_version_is_expected_and_the_newest_uses_the_newest_requests():
    assert [str(version) for version in ApiVersion] == [protocol for protocol, _ in EXPECTED]
    assert EXPECTED[-1][1] == tuple(ADVERTISED_MAX[key] for key in KEYS)
    with pytest.raises(KeyError):
        inter_broker_version(ApiKey.METADATA, ApiVersion.V2_8_IV1)
