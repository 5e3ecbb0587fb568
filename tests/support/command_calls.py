"""A call of every command: the example at the end of its help. So a new command is called without further work.

`furnish` makes what the examples name: topics, a group, a transactional id, files in the current directory. It also
makes a topic, a group and a transactional id whose names begin with `wild`, which no example names.
"""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from support.command_lines import commands
from support.command_world import CommandWorld

BROKERS = 4

NOT_CALLED = {
    "klamm up": "a server",
    "klamm broker": "a server",
    "klamm zookeeper": "a server",
    "klamm cockpit": "a server",
    "klamm record": "runs until Ctrl-C",
    "klamm pipeline archive": "Spark",
    "klamm pipeline replay": "Spark",
    "klamm pipeline transform": "Spark",
    "klamm pipeline load": "Spark",
    "klamm pipeline prewarm": "compiles for a minute",
    "klamm pipeline run": "Spark",
}

# Without an end.
_ENDLESS = ("--follow", "--watch")
_PLACES = {"/var/lib/kafka-1": "kafka-1", "/var/lib/kafka-2": "kafka-2"}


def calls(world: CommandWorld) -> Iterator[tuple[str, list[str]]]:
    """Each command with its arguments, for this cluster. A command that asks is told yes."""
    for name, command in commands():
        if name in NOT_CALLED:
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        words = [_PLACES.get(word, word) for word in shlex.split(command.epilog.removeprefix("Example: "))[1:]]
        words = [word for word in words if word not in _ENDLESS]
        for option, value in (("--bootstrap-server", world.bootstrap), ("--zookeeper", world.zookeeper)):
            if option in words:
                words[words.index(option) + 1] = value
            elif option == "--bootstrap-server" and option in options:
                words += [option, value]
        if "--yes" in options and "--yes" not in words:
            words.append("--yes")
        yield name, words


def furnish(world: CommandWorld, key: str = "key", value: str = "value") -> None:
    """Makes what the examples name. The records have these keys and values, and a number."""
    Path("orders.txt").write_text("".join(f"{key}{number}:{value}{number}\n" for number in range(12)))
    moved = {"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}
    for name in ("plan.json", "plan.rollback.json"):
        Path(name).write_text(json.dumps({"version": 1, "partitions": [moved]}))
    brokers = ("--bootstrap-server", world.bootstrap)
    create = ("topics", "create", *brokers, "--partitions", "4", "--replication-factor", "3")
    topics = [
        world.run(*create, "--topic", "orders", "--config", "segment.ms=3600000"),
        world.run(*create, "--topic", "castle-old"),
        world.run(*create, "--topic", "wild"),
    ]
    write = ("produce", "--topic", "orders", "--file", "orders.txt", "--key-separator", ":", *brokers)
    rest = [
        world.run(*write, "--transactional-id", "copier-1"),
        world.run("produce", "--topic", "wild", "--file", "orders.txt", "--transactional-id", "wild-id", *brokers),
        world.run(
            "consume", "--topic", "wild", "--from-beginning", "--group", "wild-group", "--max-messages", "12", *brokers
        ),
        world.run(
            "consume", "--topic", "orders", "--from-beginning", "--group", "billing", "--max-messages", "12", *brokers
        ),
    ]
    assert all(ended.code == 0 for ended in (*topics, *rest)), [*topics, *rest]
