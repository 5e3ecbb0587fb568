"""The judge of `klamm verify`: damage of every kind, planted on each replica in turn, is never said to be fine."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from klamm.cli import main
from klamm.cli.verify.report import Outcome, Report
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.client.admin.topics import delete_topics
from klamm.client.cluster import ClusterClient
from klamm.client.threads import call
from klamm.client.verification.verifier import VerifyOptions, partitions_to_verify, verify_replicas
from klamm.processes.helper import Helper
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, iterate_batches
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import TopicPartition
from klamm.storage.log.log import Log
from klamm.storage.log.log_config import LogConfig
from klamm.testing import cluster as testing_cluster
from klamm.testing.cluster import Cluster
from support.log_directories import make_log_directory
from support.placed_topics import create, options_of, wait_until_committed, write_batches

BATCHES = 12
BROKERS = (0, 1, 2)
# Three batches of 270 bytes.
SEGMENT_BYTES = 1000


def segments(log: Path) -> list[Path]:
    return sorted(log.glob("*.log"))


def second_batch(segment: Path) -> tuple[int, int]:
    """(position, end)"""
    position, header = list(iterate_batches(segment.read_bytes()))[1]
    return position, position + header.size_bytes


def zero(segment: Path, start: int, end: int) -> None:
    with segment.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def zeroed_header(log: Path) -> None:
    position, _ = second_batch(segments(log)[1])
    zero(segments(log)[1], position, position + HEADER_SIZE_BYTES)


def zeroed_records(log: Path) -> None:
    position, end = second_batch(segments(log)[1])
    zero(segments(log)[1], position + HEADER_SIZE_BYTES, end)


def zeroed_rest(log: Path) -> None:
    segment = segments(log)[1]
    zero(segment, second_batch(segment)[0], segment.stat().st_size)


def zeroed_last_segment(log: Path) -> None:
    zero(segments(log)[-1], 0, segments(log)[-1].stat().st_size)


def cut_within_a_batch(log: Path) -> None:
    os.truncate(segments(log)[1], second_batch(segments(log)[1])[0] + 30)


def cut_between_batches(log: Path) -> None:
    os.truncate(segments(log)[1], second_batch(segments(log)[1])[0])


def cut_last_segment(log: Path) -> None:
    os.truncate(segments(log)[-1], second_batch(segments(log)[-1])[0])


def emptied_segment(log: Path) -> None:
    os.truncate(segments(log)[1], 0)


def remove(segment: Path) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        segment.with_suffix(suffix).unlink(missing_ok=True)


def missing_first_segment(log: Path) -> None:
    remove(segments(log)[0])


def missing_segment(log: Path) -> None:
    remove(segments(log)[1])


def missing_last_segment(log: Path) -> None:
    remove(segments(log)[-1])


def missing_directory(log: Path) -> None:
    shutil.rmtree(log)


Damage = Callable[[Path], None]
# Of a file that a broker has open.
LIVE: tuple[Damage, ...] = (
    zeroed_header,
    zeroed_records,
    zeroed_rest,
    zeroed_last_segment,
    cut_within_a_batch,
    cut_between_batches,
    cut_last_segment,
    emptied_segment,
)
# A broker that starts again after a clean stop takes what it finds.
STOPPED: tuple[Damage, ...] = (missing_first_segment, missing_segment)
ALL: tuple[Damage, ...] = (*LIVE, *STOPPED, missing_last_segment, missing_directory)


def records(count: int = BATCHES, first: int = 0) -> list[list[Record]]:
    return [[Record(b"key-%d" % number, b"v" * 190, 1)] for number in range(first, first + count)]


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    properties = {
        "log.retention.ms": -1,
        "log.cleaner.enable": "false",
        "replica.high.watermark.checkpoint.interval.ms": 100,
    }
    with Cluster(len(BROKERS), helper=klamm_helper, properties=properties) as running:
        yield running


def create_filled(cluster: Cluster, topics: list[str], configs: dict[str, str] | None = None) -> None:
    for topic in topics:
        create(cluster, topic, [BROKERS], {"segment.bytes": str(SEGMENT_BYTES), **(configs or {})})
        write_batches(cluster, topic, records())
        for broker in BROKERS:
            wait_until_committed(cluster, topic, broker, BATCHES)


def log_of(cluster: Cluster, broker: int, topic: str) -> Path:
    log = cluster.broker(broker).data_directory / f"{topic}-0"
    assert len(segments(log)) == BATCHES // 3
    return log


def outcomes(
    cluster: Cluster, topics: list[str], before: Callable[[ClusterClient], Any] | None = None, **options: Any
) -> dict[str, Outcome]:
    """The outcome for each of these topics; `before` runs when it is known what to verify."""

    async def verify(client: ClusterClient) -> dict[str, Outcome]:
        planned = await partitions_to_verify(client, lambda name: name in topics)
        if before is not None:
            await before(client)
        wanted = VerifyOptions(patience_s=0.5, now_ms=10**13, **options)
        checks = await verify_replicas(client, planned.partitions, wanted)
        return {check.partition.topic: Report([check]).outcome for check in checks}

    client_options = replace(options_of(cluster), request_timeout_ms=1_000, retry_timeout_ms=3_000)
    found = call(client_options, verify)
    assert found.keys() == set(topics)
    return found


# -- through the brokers ----------------------------------------------------------------------------------------------


def check_live_damage(cluster: Cluster, cases: list[tuple[Damage, int]], name: str) -> None:
    topics = {f"{name}-{damage.__name__}-{broker}": (damage, broker) for damage, broker in cases}
    create_filled(cluster, list(topics))
    assert set(outcomes(cluster, list(topics)).values()) == {Outcome.EQUAL}
    for topic, (damage, broker) in topics.items():
        damage(log_of(cluster, broker, topic))
    found = outcomes(cluster, list(topics))
    assert found == dict.fromkeys(topics, Outcome.DIFFERENT)
    # Each of them concerns its own partition only.
    assert all(broker.running for broker in cluster.brokers)


def test_damage_beneath_a_running_broker_is_a_difference(cluster: Cluster) -> None:
    check_live_damage(cluster, [(damage, number % 3) for number, damage in enumerate(LIVE)], "live")
    where = ["verify", "replicas", "--bootstrap-server", cluster.bootstrap, "--patience-ms", "300"]
    assert main.run([*where, "--topic-white-list", f"live-{zeroed_header.__name__}-0"]) == 1


@pytest.mark.long
@pytest.mark.parametrize("damage", LIVE)
def test_damage_beneath_a_running_broker_is_a_difference_on_each_replica(cluster: Cluster, damage: Damage) -> None:
    check_live_damage(cluster, [(damage, broker) for broker in BROKERS], "each")


@pytest.mark.long
@pytest.mark.parametrize("damage", LIVE)
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_damage_of_a_compacted_topic_is_never_fine(cluster: Cluster, damage: Damage, policy: str) -> None:
    name = "-".join([damage.__name__, policy.replace(",", "-")])
    topics = {f"{name}-{broker}": broker for broker in BROKERS}
    create_filled(cluster, list(topics), {"cleanup.policy": policy})
    assert set(outcomes(cluster, list(topics)).values()) == {Outcome.EQUAL}
    for topic, broker in topics.items():
        damage(log_of(cluster, broker, topic))
    assert set(outcomes(cluster, list(topics)).values()) == {Outcome.DIFFERENT}


@pytest.mark.long
@pytest.mark.parametrize("broker", BROKERS)
def test_a_missing_file_is_never_fine(cluster: Cluster, broker: int) -> None:
    topics = {f"missing-{damage.__name__}-{broker}": damage for damage in STOPPED}
    create_filled(cluster, list(topics))
    cluster.stop(broker)
    for topic, damage in topics.items():
        damage(log_of(cluster, broker, topic))
    cluster.start(broker)
    cluster.until(lambda: all(sorted(cluster.isr(topic)) == sorted(BROKERS) for topic in topics))
    found = outcomes(cluster, list(topics))
    first, middle = topics
    assert found == {first: Outcome.UNVERIFIED, middle: Outcome.DIFFERENT}


@pytest.mark.long
@pytest.mark.parametrize("broker", BROKERS)
def test_what_a_broker_that_hangs_or_is_away_has_is_never_fine(cluster: Cluster, broker: int) -> None:
    topic = f"away-{broker}"
    create_filled(cluster, [topic])
    cluster.pause(broker)
    try:
        assert outcomes(cluster, [topic]) == {topic: Outcome.UNVERIFIED}
    finally:
        cluster.resume(broker)
    cluster.kill(broker)
    assert outcomes(cluster, [topic]) == {topic: Outcome.UNVERIFIED}
    where = ["verify", "replicas", "--bootstrap-server", cluster.bootstrap, "--patience-ms", "300"]
    assert main.run([*where, "--topic-white-list", topic]) == 3
    cluster.start(broker)
    cluster.until(lambda: sorted(cluster.isr(topic)) == sorted(BROKERS))
    for each in BROKERS:
        wait_until_committed(cluster, topic, each, BATCHES)
    assert outcomes(cluster, [topic]) == {topic: Outcome.EQUAL}


@pytest.mark.long
def test_a_topic_that_is_deleted_or_reassigned_meanwhile_is_never_fine(cluster: Cluster) -> None:
    create_filled(cluster, ["deleted"])
    create(cluster, "moved", [BROKERS[:2]], {"segment.bytes": str(SEGMENT_BYTES)})
    write_batches(cluster, "moved", records())

    async def delete(client: ClusterClient) -> None:
        assert await delete_topics(client, ["deleted"]) == {"deleted": None}

    async def move(client: ClusterClient) -> None:
        key = TopicPartition("moved", 0)
        assert await alter_partition_reassignments(client, {key: [2]}) == {key: None}
        await client.refresh_metadata(["moved"])
        while list(client.metadata.topics["moved"].partitions[0].replicas) != [2]:
            await client.refresh_metadata(["moved"])

    assert outcomes(cluster, ["deleted"], delete) == {"deleted": Outcome.UNVERIFIED}
    assert outcomes(cluster, ["moved"], move) == {"moved": Outcome.UNVERIFIED}


@pytest.mark.long
@pytest.mark.parametrize("broker", BROKERS)
def test_a_replica_in_a_failed_log_directory_is_never_fine(
    klamm_helper: Helper, tmp_path: Path, broker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second directory keeps the broker alive. A Cluster gives each broker one."""
    monkeypatch.setattr(testing_cluster, "OWN_PROPERTIES", ())
    own = {broker: {"log.dirs": f"{tmp_path}/a,{tmp_path}/b"}}
    with Cluster(len(BROKERS), helper=klamm_helper, broker_properties=own) as cluster:
        create_filled(cluster, ["offline"])
        (log,) = tmp_path.glob("*/offline-0")
        # The next append of this broker cannot open its segment.
        shutil.rmtree(log.parent)
        log.parent.write_text("")
        write_batches(cluster, "offline", records(3))
        cluster.until(lambda: broker not in cluster.isr("offline"))
        assert cluster.broker(broker).running
        assert outcomes(cluster, ["offline"]) == {"offline": Outcome.UNVERIFIED}


# -- in data directories ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Data directories of stopped brokers with equal replicas of offline-0."""

    def fill(log: Log) -> None:
        for batch in records():
            log.append_as_leader(build_batch(batch), 0, now_ms=1)

    made = [tmp_path_factory.mktemp("data") / str(broker) for broker in BROKERS]
    for broker, directory in zip(BROKERS, made, strict=True):
        config = LogConfig(segment_bytes=SEGMENT_BYTES)
        make_log_directory(directory, topics=("offline",), broker_id=broker, fill=fill, config=config)
        (directory / "replication-offset-checkpoint").write_text(f"0\n1\noffline 0 {BATCHES}\n")
    return made


def codes(directories: list[Path], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[int]]:
    """The exit codes of `verify replicas`, and of `log verify` for each directory."""
    capsys.readouterr()
    replicas = main.run(["verify", "replicas", "--json", "--log-dirs", ",".join(map(str, directories))])
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"] == "equal", found["is_fine"]) == (replicas == 0, replicas == 0)
    return replicas, [main.run(["log", "verify", str(directory)]) for directory in directories]


def test_data_directories_without_damage_are_fine(directories: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert codes(directories, capsys) == (0, [0, 0, 0])


@pytest.mark.parametrize("damage", ALL)
def test_damage_in_data_directories_is_never_fine(
    directories: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Damage
) -> None:
    for broker in BROKERS:
        copies = [tmp_path / str(broker) / each.name for each in directories]
        for directory, copy in zip(directories, copies, strict=True):
            shutil.copytree(directory, copy)
        damage(copies[broker] / "offline-0")
        replicas, logs = codes(copies, capsys)
        # What retention may have removed is no damage of one broker's log.
        expected = 0 if damage is missing_first_segment else 3 if damage is missing_directory else 1
        assert logs == [expected if each == broker else 0 for each in BROKERS]
        assert replicas == (3 if damage in (missing_first_segment, missing_directory) else 1)
