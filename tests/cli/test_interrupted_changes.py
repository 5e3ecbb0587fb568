"""Ctrl-C at the first request with which a command changes a cluster: the command names the line that goes on."""

import asyncio
import json
import shlex
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from klamm.net import client as wire
from klamm.protocol.api_keys import ApiKey
from klamm.zookeeper.client.operations import ZooKeeperClient
from support.command_world import CommandWorld, is_operator

CHANGES = {
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ELECT_LEADERS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_DELETE,
    ApiKey.DELETE_GROUPS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
}
PROPERTIES = {"auto.leader.rebalance.enable": "false"}
# `led` is not led by its preferred replica; broker 2 was the last in the ISR of `lone`, and has gone.
LED, LONE = "led", "lone"
PLAN = ("--reassignment-json-file", "plan.json")
# Each command, and the command that shows what was done; None if the same one continues.
COMMANDS: dict[str, str | None] = {
    "topics create --topic new --partitions 1": "topics describe --topic new",
    "topics alter --topic orders --partitions 6 --yes": None,
    "topics delete --topic orders --yes": None,
    "configs alter --topic orders --add-config retention.ms=3600000 --yes": (
        "configs describe --entity-type topics --entity-name orders"
    ),
    "groups reset-offsets --group g --topic orders --to-offset 0 --execute": None,
    "groups reset-offsets --group g --topic orders --shift-by -1 --execute": "groups describe --group g",
    "groups delete --group g": None,
    "groups delete-offsets --group g --topic orders": None,
    "transactions abort --topic orders --partition 0 --producer-id 999 --producer-epoch 0 --coordinator-epoch 0"
    " --yes": None,
    "transactions force-terminate --transactional-id copier --yes": None,
    f"elect preferred --topic {LED} --yes": None,
    f"elect unclean --topic {LONE} --yes": None,
    "controller move": "controller status",
    "reassign cancel --reassignment-json-file plan.json --yes": None,
}


class Interrupted(Exception):
    """Ends the request; the command then gets a KeyboardInterrupt."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandWorld]:
    records = tmp_path_factory.mktemp("records") / "records.txt"
    records.write_text("value\n")
    with CommandWorld(brokers=3, properties=PROPERTIES) as made:
        reach = ("--bootstrap-server", made.bootstrap)
        setup = [
            *(
                ("topics", "create", "--topic", topic, "--replica-assignment", replicas)
                for topic, replicas in (("orders", "0:1"), (LED, "0:1"), (LONE, "2:0"))
            ),
            ("produce", "--topic", "orders", "--file", str(records), "--transactional-id", "copier"),
            ("consume", "--topic", "orders", "--from-beginning", "--group", "g", "--max-messages", "1"),
        ]
        for arguments in setup:
            ended = made.run(*arguments, *reach)
            assert ended.code == 0, ended
        made.do(made.cluster.brokers[0].stop)
        made.do(made.cluster.brokers[2].stop)
        made.later(0, made.cluster.brokers[0].start)
        made.do(lambda: asyncio.sleep(10))
        yield made


@pytest.fixture(autouse=True)
def interrupts(world: CommandWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The requests at which a command was interrupted."""
    made: list[str] = []
    send, submit = wire.Connection.send, world._submit

    async def interrupted_send(self: Any, api_key: ApiKey, build: Any, **named: Any) -> Any:
        is_change = is_operator() and api_key in CHANGES
        if is_change and not getattr(build(self.version_of(api_key)), "validate_only", False):
            made.append(api_key.name)
            raise Interrupted
        return await send(self, api_key, build, **named)

    def interrupted_write(name: str) -> Any:
        write = getattr(ZooKeeperClient, name)

        async def interrupted(self: Any, *arguments: Any, **named: Any) -> Any:
            if is_operator():
                made.append(name)
                raise Interrupted
            return await write(self, *arguments, **named)

        return interrupted

    def submitted(work: Any) -> "Future[Any]":
        future = submit(work)
        result = future.result

        def interrupted_result(timeout: float | None = None) -> Any:
            try:
                return result(timeout)
            except Interrupted:
                raise KeyboardInterrupt from None

        monkeypatch.setattr(future, "result", interrupted_result)
        return future

    monkeypatch.setattr(wire.Connection, "send", interrupted_send)
    for name in ("create", "set", "delete", "multi"):
        monkeypatch.setattr(ZooKeeperClient, name, interrupted_write(name))
    monkeypatch.setattr(world, "_submit", submitted)
    monkeypatch.chdir(tmp_path)
    moved = {"topic": "orders", "partition": 0, "replicas": [1, 0]}
    Path("plan.json").write_text(json.dumps({"version": 1, "partitions": [moved]}))
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_names_the_command_that_goes_on(world: CommandWorld, command: str, interrupts: list[str]) -> None:
    reach = ["--bootstrap-server", world.bootstrap]
    arguments = [*shlex.split(command), *reach]
    ended = world.run(*arguments)
    look = COMMANDS[command]
    goes_on = arguments if look is None else [*shlex.split(look), *reach]
    verb = "To continue" if look is None else "To see what was done"
    assert ended.code == 130 and interrupts, ended
    told = f"klamm: interrupted: what was asked for may still be done. {verb}: {shlex.join(['klamm', *goes_on])}"
    assert ended.err.splitlines()[-1] == told


@pytest.mark.parametrize("is_over_znodes", [False, True])
def test_an_execution_names_what_continues_and_what_stops_it(
    world: CommandWorld, interrupts: list[str], is_over_znodes: bool
) -> None:
    brokers = f"--bootstrap-server {world.bootstrap}"
    reach = f"--zookeeper {world.zookeeper}" if is_over_znodes else brokers
    ended = world.run("reassign", "execute", *PLAN, "--yes", *reach.split())
    assert ended.code == 130 and interrupts, ended
    file, stopping = " ".join(PLAN), "--bootstrap-server HOST:PORT" if is_over_znodes else brokers
    assert ended.err.splitlines()[-1] == (
        "Interrupted. What has begun continues in the cluster; nothing more begins. To continue:"
        f" klamm reassign execute --resume {file} {reach}; to stop: klamm reassign cancel {file} {stopping}."
    )
