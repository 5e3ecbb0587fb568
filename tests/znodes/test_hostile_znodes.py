"""Znodes with contents that nobody who means well wrote: each is read, or refused with ZnodeError."""

import random
from collections.abc import Callable

import pytest

from klamm.znodes import brokers, cluster, configs, requests, topics
from klamm.znodes.fields import ZnodeError
from support.hostile_bytes import NUMBERS, Hostile, seeds

READERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "/brokers/ids/1": (
        lambda data: brokers.BrokerRegistration.decode(1, data),
        b'{"version":5,"endpoints":["PLAINTEXT://h:9092","S://[::1]:1"],"listener_security_protocol_map":'
        b'{"PLAINTEXT":"PLAINTEXT","S":"SASL_SSL"},"rack":"r","jmx_port":-1,"host":"h","port":9092,"timestamp":"1",'
        b'"features":{"f":{"min_version":1,"max_version":2}}}',
    ),
    "/brokers/topics/t": (
        lambda data: topics.TopicAssignment.decode("t", data),
        b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":{"0":[1,2],"1":[2]},'
        b'"adding_replicas":{"0":[2]},"removing_replicas":{}}',
    ),
    "/brokers/topics/t/partitions/0/state": (
        lambda data: topics.LeaderAndIsr.decode("t", 0, data),
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":3,"isr":[1,2]}',
    ),
    "/controller": (cluster.Controller.decode, b'{"version":1,"brokerid":1,"timestamp":"17"}'),
    "/controller_epoch": (cluster.decode_controller_epoch, b"17"),
    "/cluster/id": (cluster.decode_cluster_id, b'{"version":"1","id":"abc"}'),
    "/latest_producer_id_block": (
        cluster.ProducerIdBlock.decode,
        b'{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}',
    ),
    "/feature": (
        cluster.Features.decode,
        b'{"version":1,"status":1,"features":{"f":{"min_version_level":1,"max_version_level":2}}}',
    ),
    "/config/topics/t": (
        lambda data: configs.decode_config("topics/t", data),
        b'{"version":1,"config":{"retention.ms":"1"}}',
    ),
    "/config/changes/config_change_1": (
        lambda data: configs.decode_config_change("config_change_1", data),
        b'{"version":2,"entity_path":"topics/t"}',
    ),
    "/isr_change_notification/isr_change_1": (
        lambda data: requests.decode_partitions("p", data),
        b'{"version":1,"partitions":[{"topic":"t","partition":0}]}',
    ),
    "/admin/reassign_partitions": (
        requests.decode_reassignment,
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}',
    ),
    "/log_dir_event_notification/log_dir_event_1": (
        lambda data: requests.decode_log_dir_event("p", data),
        b'{"version":1,"broker":1,"event":1}',
    ),
}

VALUES = [b"null", b"{}", b"[]", b'""', b'"-"', b"true", b"1.5", b"1e400", b'"\\ud800"', b'"' + b"9" * 5000 + b'"']


def odd_json(chance: random.Random, data: bytes) -> bytes:
    """The JSON with one of its values another one."""
    starts = [at for at, byte in enumerate(data) if byte in b":[," and at + 1 < len(data)]
    at = chance.choice(starts) + 1 if starts else 0
    end = next((at for at in range(at + 1, len(data)) if data[at] in b",]}"), len(data))
    value = chance.choice([*VALUES, str(chance.choice(NUMBERS)).encode(), b"[" * 2000])
    return data[:at] + value + data[end:]


@pytest.mark.parametrize("path", READERS)
def test_a_znode_is_read_or_refused(path: str) -> None:
    read, good = READERS[path]
    read(good)
    for seed in seeds(300):
        hostile = Hostile(seed)
        data = hostile.mutated(good) if hostile.chance.random() < 0.5 else odd_json(hostile.chance, good)
        try:
            read(data)
        except ZnodeError:
            continue
        except BaseException as error:
            error.add_note(f"seed {seed}: {data!r}")
            raise
