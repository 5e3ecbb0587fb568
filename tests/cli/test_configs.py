"""`klamm configs`: which entity the options name, what becomes of each key, and the two ways on a klamm cluster."""

import contextlib
import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.access.clients import command_options
from klamm.cli import main
from klamm.cli.configs.changes import (
    Change,
    Current,
    Password,
    check_quotas,
    parse_additions,
    parse_deletions,
    parse_password,
    plan,
    plan_lines,
)
from klamm.cli.configs.entities import Entity, Part, one, parse_entity
from klamm.cli.configs.over_brokers import BrokerConfigs
from klamm.cli.configs.over_znodes import ZnodeConfigs
from klamm.cli.configs.views import completed_line
from klamm.cli.shared.clients import client_in_thread
from klamm.processes.helper import Helper
from klamm.processes.tool_errors import ToolError
from klamm.testing import Cluster

# -- entities -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "names", "expected"),
    [
        (["topics"], ["t"], [("topics", "t")]),
        (["topics"], [], [("topics", None)]),
        (["brokers"], [""], [("brokers", "")]),
        (["users", "clients"], ["u", ""], [("users", "u"), ("clients", "")]),
        (["clients", "users"], ["c", "u"], [("users", "u"), ("clients", "c")]),
        (["users", "clients"], ["u"], [("users", "u"), ("clients", None)]),
        (["users", "clients"], [], [("users", None), ("clients", None)]),
    ],
)
def test_types_and_names_become_an_entity_with_the_user_first(
    types: list[str], names: list[str], expected: list[tuple[str, str | None]]
) -> None:
    entity = parse_entity(types, names, [], to_alter=False, zookeeper=False)
    assert entity == Entity(tuple(Part(*each) for each in expected))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "name an entity: --topic, --broker or --entity-type, for example"),
        ("--entity-type things", "'things' is not one of topics, clients, users, brokers, ips, broker-loggers"),
        ("--entity-name t", "there are more names than types"),
        ("--topic t --entity-type topics", "do not go with the short options"),
        ("--topic t --broker 1", "only users and clients may be combined, not topics, brokers"),
        ("--user u --user-defaults", "an entity type is given twice: users, users"),
        ("--entity-type topics --entity-default", "topics have no default, only clients, users, brokers, ips"),
        ("--broker one", "'one' is not a broker's id, which is a whole number"),
        ("--entity-type broker-loggers", "broker-loggers need --entity-name"),
        ("--broker-logger 1 --zookeeper localhost:1", "only the broker itself knows its loggers"),
        ("--topic ''", "the name is empty"),
    ],
)
def test_options_that_name_no_entity_are_wrong_calls(options: str, message: str) -> None:
    error = run(f"describe {options}", code=2)
    assert message in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--entity-type topics --add-config a=b", "topics need --entity-name"),
        ("--entity-type users --add-config a=b", "users need --entity-name or --entity-default"),
        ("--topic t", "give --add-config, --add-config-file or --delete-config"),
        ("--topic t --add-config a=1 --delete-config a", "a cannot be both added and deleted"),
        ("--topic t --add-config a", "'a' is not of the form key=value,key=[value,value]"),
        ("--topic t --add-config a=[b,c]d", "'c]d' is not of the form key=value,key=[value,value]"),
    ],
)
def test_wrong_alterations_are_wrong_calls(options: str, message: str, cluster: Cluster) -> None:
    error = run(f"alter {options} --bootstrap-server {cluster.bootstrap}", code=2)
    assert message in error


# -- changes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a=b,c=d", {"a": "b", "c": "d"}),
        (" a = b , c= ", {"a": "b", "c": ""}),
        ("a=[b,c],d=e", {"a": "b,c", "d": "e"}),
        ("a=[b=c,d=e]", {"a": "b=c,d=e"}),
        ("a=b=c", {"a": "b=c"}),
        ("l=PLAINTEXT://[::1]:9092", {"l": "PLAINTEXT://[::1]:9092"}),
        ("l=[A://[::1]:1,B://[::1]:2]", {"l": "A://[::1]:1,B://[::1]:2"}),
    ],
)
def test_pairs_keep_commas_in_square_brackets(text: str, expected: dict[str, str]) -> None:
    assert parse_additions(text, None) == expected


def test_keys_to_delete_are_read_once_each() -> None:
    assert parse_deletions(["a, b", "b,c"]) == ["a", "b", "c"]


def test_a_plan_shows_the_old_and_the_new_value_of_each_key() -> None:
    current = {
        "retention.ms": Current("604800000", "DEFAULT_CONFIG", is_own=False),
        "segment.ms": Current("5", "DYNAMIC_TOPIC_CONFIG", inherited="7", heir="STATIC_BROKER_CONFIG"),
        "x": Current("1", "DYNAMIC_TOPIC_CONFIG"),
        "password": Current(None, "DYNAMIC_BROKER_CONFIG", is_sensitive=True),
    }
    additions = {"retention.ms": "1000", "x": "1", "new": "", "password": "secret", "SCRAM-SHA-256": "password=secret"}
    changes = plan(one("topics", "t"), current, additions, ["segment.ms"])
    assert list(plan_lines(one("topics", "t"), changes)) == [
        "Changes of topic t:",
        "  retention.ms: 604800000 (DEFAULT_CONFIG) -> 1000",
        "  x: 1 (DYNAMIC_TOPIC_CONFIG) -> 1 (already)",
        '  new: not set -> ""',
        "  password: (hidden) (DYNAMIC_BROKER_CONFIG) -> (hidden)",
        "  SCRAM-SHA-256: not set -> (hidden)",
        "  segment.ms: 5 (DYNAMIC_TOPIC_CONFIG) -> deleted, then 7 (STATIC_BROKER_CONFIG)",
    ]


def test_a_key_that_is_not_set_for_the_entity_cannot_be_deleted() -> None:
    current = {"a": Current("1"), "b": Current("1", "DEFAULT_CONFIG", is_own=False)}
    with pytest.raises(ToolError, match=r"^Invalid config\(s\): b,c: not set for topic t"):
        plan(one("topics", "t"), current, {}, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (one("clients", "c"), "producer_byte_rate", "1.5", "producer_byte_rate=1.5 is not a long"),
        (one("clients", "c"), "SCRAM-SHA-256", "password=p", "SCRAM-SHA-256: not a config of client c; allowed are"),
        (one("users", ""), "SCRAM-SHA-256", "password=p", "not a config of default of users"),
        (one("users", "u"), "producer_rate", "1", "allowed are producer_byte_rate, consumer_byte_rate"),
        (one("users", "u"), "SCRAM-SHA-256", "p", r"needs a value of the form \[iterations=8192,password=secret\]"),
        (one("users", "u"), "SCRAM-SHA-512", "iterations=5,password=p", "Iterations 5 is less than the minimum 4096"),
        (one("users", "u"), "SCRAM-SHA-512", "password=", "the password is empty"),
        (one("ips", "127.0.0.1"), "connection_creation_rate", "-1", "allowed: at least 0"),
        (one("ips", ""), "producer_byte_rate", "1", "allowed are connection_creation_rate"),
    ],
)
def test_wrong_quotas_and_credentials_are_named(entity: Entity, key: str, value: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        check_quotas(entity, [Change(key, None, value)])


def test_a_password_has_iterations_or_the_least_number_of_them() -> None:
    assert parse_password("SCRAM-SHA-256", "iterations=8192,password=a,b=c") == Password("a,b=c", 8192)
    assert parse_password("SCRAM-SHA-256", "password=p") == Password("p", 4096)


@pytest.mark.parametrize(
    ("entity", "zookeeper", "line"),
    [
        (one("topics", "t"), False, "Completed updating config for topic t."),
        (one("brokers", ""), False, "Completed updating default config for brokers in the cluster."),
        (one("brokers", "1"), True, "Completed updating config for entity: brokers '1'."),
        (
            Entity((Part("users", "u"), Part("clients", ""))),
            True,
            "Completed updating config for entity: user-principal 'u', default client-id.",
        ),
    ],
)
def test_the_last_line_is_that_of_kafkas_tool(entity: Entity, zookeeper: bool, line: str) -> None:
    assert completed_line(entity, zookeeper=zookeeper) == line


# -- on a cluster -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=1, helper=klamm_helper) as cluster:
        cluster.create_topic("orders")
        yield cluster


def run(arguments: str, *, code: int = 0) -> str:
    """Runs `klamm configs` and returns what it prints: its output, or for another code its errors."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = main.run(["configs", *shlex.split(arguments)])
    assert ended == code, err.getvalue() + out.getvalue()
    return err.getvalue() if code else out.getvalue()


def test_a_topics_configs_are_set_described_and_deleted(cluster: Cluster, tmp_path: Path) -> None:
    server = f"--bootstrap-server {cluster.bootstrap}"
    assert run(f"describe --topic orders {server}") == "Dynamic configs for topic orders are:\n"
    file = tmp_path / "configs.properties"
    file.write_text("retention.ms=1000\nfollower.replication.throttled.replicas=0:0,1:0\n")
    assert (
        run(f"alter --topic orders --add-config-file {file} --yes {server}")
        == "Completed updating config for topic orders.\n"
    )
    assert run(f"describe --topic orders {server}").splitlines() == [
        "Dynamic configs for topic orders are:",
        "  follower.replication.throttled.replicas=0:0,1:0 sensitive=false"
        " synonyms={DYNAMIC_TOPIC_CONFIG:follower.replication.throttled.replicas=0:0,1:0}",
        "  retention.ms=1000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1000}",
    ]
    assert "synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}" in run(f"describe --topic orders --all {server}")
    keys = "retention.ms,follower.replication.throttled.replicas"
    changed = run(f"alter --topic orders --delete-config {keys} --force --json {server}")
    assert [change["operation"] for change in json.loads(changed)["changes"]] == ["delete", "delete"]
    assert run(f"describe --topic orders {server} --json") == '[{"entity": {"topics": "orders"}, "configs": []}]\n'


def test_tls_to_zookeeper_is_refused_with_what_to_do() -> None:
    refused = run("describe --topic orders --zookeeper z:2181 --zk-tls-config-file tls.properties", code=2)
    assert "klamm speaks to ZooKeeper without TLS; give --bootstrap-server instead" in " ".join(refused.split())


def test_a_bad_value_is_refused_before_the_question(cluster: Cluster) -> None:
    server = f"--bootstrap-server {cluster.bootstrap}"
    refused = run(f"alter --topic orders --add-config retention.ms=soon,segment.ms=1 {server}", code=1)
    assert refused.startswith("klamm: INVALID_REQUEST (42): Invalid config value: retention.ms=soon is not a long")
    unknown = run(f"alter --topic orders --add-config retentoin.ms=1 {server}", code=1)
    assert unknown == "klamm: INVALID_CONFIG (40): Unknown topic config name: retentoin.ms\n"
    unasked = run(f"alter --topic orders --add-config retention.ms=1 {server}", code=1)
    assert "Nothing was changed: say --yes" in unasked
    assert "klamm: UNKNOWN_TOPIC_OR_PARTITION (3)" in run(f"describe --topic nowhere {server}", code=1)
    for command in ("describe --broker 9", "describe --broker-logger 9", "alter --broker 9 --add-config a=b"):
        refused = run(f"{command} {server}", code=1)
        assert refused == "klamm: BROKER_NOT_AVAILABLE (8): broker 9 is not in the cluster; live are 0\n"


def test_brokers_and_their_default(cluster: Cluster) -> None:
    server = f"--bootstrap-server {cluster.bootstrap}"
    run(f"alter --broker-defaults --add-config log.retention.ms=500000 --yes {server}")
    run(f"alter --broker 0 --add-config log.retention.ms=400000 --yes {server}")
    cluster.until(lambda: "400000" in run(f"describe --broker 0 {server}"))
    assert run(f"describe --entity-type brokers {server}").splitlines() == [
        "Dynamic configs for broker 0 are:",
        "  log.retention.ms=400000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=400000,"
        " DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=500000, DEFAULT_CONFIG:log.retention.hours=168}",
        "Default configs for brokers in the cluster are:",
        "  log.retention.ms=500000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=500000}",
    ]
    run(f"alter --broker 0 --delete-config log.retention.ms --yes {server}")
    run(f"alter --entity-type brokers --entity-default --delete-config log.retention.ms --yes {server}")


def test_what_another_program_changes_after_the_plan_stays(cluster: Cluster) -> None:
    entity, throttle = one("brokers", "0"), "leader.replication.throttled.rate"
    server = f"--bootstrap-server {cluster.bootstrap}"
    ways: list[BrokerConfigs | ZnodeConfigs] = [ZnodeConfigs(cluster.zookeeper)]
    with client_in_thread(command_options(cluster.bootstrap, None)) as client:
        for configs in (*ways, BrokerConfigs(client)):
            changes = plan(entity, configs.read(entity), {throttle: "1000"}, [])
            run(f"alter --broker 0 --add-config log.retention.ms=7000 --yes {server}")
            configs.apply(entity, changes)
            stored = run(f"describe --broker 0 --zookeeper {cluster.zookeeper}")
            assert sorted(stored.split()[-1].split(",")) == [f"{throttle}=1000", "log.retention.ms=7000"]
            cluster.until(lambda: f"{throttle}=1000" in run(f"describe --broker 0 {server}"))
            run(f"alter --broker 0 --delete-config log.retention.ms,{throttle} --yes {server}")
            cluster.until(lambda: throttle not in run(f"describe --broker 0 {server}"))


def test_what_klamms_brokers_do_not_have_is_a_clear_error(cluster: Cluster) -> None:
    server = f"--bootstrap-server {cluster.bootstrap}"
    loggers = run(f"describe --broker-logger 0 {server}", code=1)
    assert loggers.startswith(
        "klamm: broker 0 has no loggers that can be changed, like brokers of klamm: INVALID_REQUEST"
    )
    scram = run(f"alter --user alice --add-config 'SCRAM-SHA-256=[password=pw]' --yes {server}", code=1)
    assert "AlterUserScramCredentials (51) is not served by this broker; with --zookeeper, quotas" in scram


def test_quotas_through_the_brokers(cluster: Cluster) -> None:
    server = f"--bootstrap-server {cluster.bootstrap}"
    run(f"alter --user alice --client-defaults --add-config producer_byte_rate=1000 --yes {server}")
    run(f"alter --user carol --add-config request_percentage=12.5,controller_mutation_rate=3 --yes {server}")
    run(f"alter --client-defaults --add-config consumer_byte_rate=2000000000 --yes {server}")
    run(f"alter --ip ::1 --add-config connection_creation_rate=7 --yes {server}")
    described = [
        (
            "--user alice --client-defaults",
            "Quota configs for user-principal 'alice', the default client-id are producer_byte_rate=1000.0",
        ),
        (
            "--user carol",
            "Quota configs for user-principal 'carol' are controller_mutation_rate=3.0, request_percentage=12.5",
        ),
        ("--entity-type clients", "Quota configs for the default client-id are consumer_byte_rate=2.0E9"),
        ("--entity-type ips", "Quota configs for ip '::1' are connection_creation_rate=7.0"),
    ]
    for entity, line in described:
        assert run(f"describe {entity} {server}").splitlines() == [line]
    run(f"alter --user carol --delete-config request_percentage --yes {server}")
    assert "request_percentage" not in run(f"describe --user carol {server}")
    refused = run(f"alter --client-defaults --add-config producer_byte_rate=-5 --yes {server}", code=1)
    assert "producer_byte_rate=-5 is not allowed; allowed: at least 0" in refused
    for entity, key in (
        ("--user alice --client-defaults", "producer_byte_rate"),
        ("--user carol", "controller_mutation_rate"),
        ("--client-defaults", "consumer_byte_rate"),
        ("--ip ::1", "connection_creation_rate"),
    ):
        run(f"alter {entity} --delete-config {key} --yes {server}")
        assert run(f"describe {entity} {server}") == ""


def test_quotas_and_credentials_in_zookeeper(cluster: Cluster) -> None:
    zookeeper = f"--zookeeper {cluster.zookeeper}"
    run(f"alter --user 'CN=a b*~' --add-config producer_byte_rate=1000 --yes {zookeeper}")
    run(f"alter --user alice --client-defaults --add-config request_percentage=50 --yes {zookeeper}")
    done = run(f"alter --user bob --add-config 'SCRAM-SHA-256=[iterations=4096,password=pw]' --yes {zookeeper}")
    assert done == "Completed updating config for entity: user-principal 'bob'.\n"
    run(f"alter --ip-defaults --add-config connection_creation_rate=7 --yes {zookeeper}")
    users = run(f"describe --entity-type users {zookeeper}").splitlines()
    assert users[0] == "Configs for user-principal 'CN=a b*~' are producer_byte_rate=1000"
    assert users[1].startswith("Configs for user-principal 'bob' are SCRAM-SHA-256=salt=")
    assert len(users) == 2
    assert run(f"describe --entity-type users --entity-type clients {zookeeper}").splitlines() == [
        "Configs for user-principal 'alice', default client-id are request_percentage=50"
    ]
    assert run(f"describe --ip-defaults {zookeeper}") == "Configs for default ips are connection_creation_rate=7\n"
    refused = run(f"alter --ip 'no host' --add-config connection_creation_rate=7 --yes {zookeeper}", code=1)
    assert refused == "klamm: no host is not an IP address, and no host of this name is known\n"
    assert "Invalid config(s): consumer_byte_rate" in run(
        f"alter --user bob --delete-config consumer_byte_rate --yes {zookeeper}", code=1
    )


def test_topics_and_brokers_in_zookeeper(cluster: Cluster) -> None:
    server, zookeeper = f"--bootstrap-server {cluster.bootstrap}", f"--zookeeper {cluster.zookeeper}"
    cluster.create_topic("znodes")
    run(f"alter --topic znodes --add-config retention.ms=1234 --yes {zookeeper}")
    assert run(f"describe --topic znodes {zookeeper}") == "Configs for topic 'znodes' are retention.ms=1234\n"
    assert "retention.ms=1234" in run(f"describe --topic znodes {server}")
    for options, message in (
        ("--topic znodes --add-config retention.ms=x", "retention.ms=x is not a long"),
        ("--topic znodes --add-config retentoin.ms=1", "Unknown topic config name: retentoin.ms"),
        ("--topic nowhere --add-config retention.ms=1", "Topic 'nowhere' does not exist."),
        ("--broker 0 --add-config log.retention.ms=1", "broker 0 is running and validates its own configs"),
        ("--broker 7 --add-config listener.name.x.ssl.key.password=1", "have to be stored encrypted"),
        ("--broker 7 --add-config log.dirs=/tmp", "log.dirs cannot be changed while brokers run"),
    ):
        assert message in run(f"alter {options} --yes {zookeeper}", code=1)
    throttle = "leader.replication.throttled.rate"
    run(f"alter --broker 0 --add-config {throttle}=1000 --yes {zookeeper}")
    cluster.until(lambda: f"{throttle}=1000" in run(f"describe --broker 0 {server}"))
    run(f"alter --broker 0 --delete-config {throttle} --yes {zookeeper}")
