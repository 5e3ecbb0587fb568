"""The commands `klamm configs describe` and `klamm configs alter`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from klamm.access.clients import command_options
from klamm.access.properties import read_properties
from klamm.base.words import counted
from klamm.cli.configs.changes import parse_additions, parse_deletions, plan, plan_lines, plan_value, require_changes
from klamm.cli.configs.entities import (
    BROKER_LOGGERS,
    BROKERS,
    CLIENTS,
    DEFAULT,
    IPS,
    TOPICS,
    USERS,
    Part,
    parse_entity,
)
from klamm.cli.configs.views import completed_line
from klamm.cli.shared.clients import DEFAULT_BOOTSTRAP, AsJson, BootstrapServer, CommandConfig, client_in_thread
from klamm.cli.shared.confirm import Force, Yes, confirm
from klamm.cli.shared.output import print_line, print_lines
from klamm.cli.shared.zookeeper_access import ZooKeeper

if TYPE_CHECKING:
    from klamm.cli.configs.over_brokers import BrokerConfigs
    from klamm.cli.configs.over_znodes import ZnodeConfigs

app = typer.Typer(
    help="Describe and alter the configs of topics, brokers, broker loggers, users, clients and IP addresses.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class DefaultIsName(TyperCommand):
    """A command whose --entity-default takes its place among the --entity-name, as an empty name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, [f"--entity-name={DEFAULT}" if argument == "--entity-default" else argument for argument in args]
        )


EntityType = Annotated[
    list[str] | None,
    typer.Option(
        "--entity-type",
        metavar="TYPE",
        help="topics, brokers, broker-loggers, users, clients or ips; users and clients may stand together.",
    ),
]
EntityName = Annotated[
    list[str] | None, typer.Option("--entity-name", metavar="NAME", help="The name of the entity of that type.")
]
EntityDefault = Annotated[bool, typer.Option("--entity-default", help="The default of that type, instead of a name.")]
Topic = Annotated[str | None, typer.Option("--topic", help="The topic's name.")]
Client = Annotated[str | None, typer.Option("--client", metavar="ID", help="The client's id.")]
ClientDefaults = Annotated[bool, typer.Option("--client-defaults", help="The default of all clients.")]
User = Annotated[str | None, typer.Option("--user", metavar="PRINCIPAL", help="The user's principal name.")]
UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="The default of all users.")]
Broker = Annotated[str | None, typer.Option("--broker", metavar="ID", help="The broker's id.")]
BrokerDefaults = Annotated[bool, typer.Option("--broker-defaults", help="The default of all brokers.")]
BrokerLogger = Annotated[
    str | None, typer.Option("--broker-logger", metavar="ID", help="The broker whose loggers are meant.")
]
Ip = Annotated[str | None, typer.Option("--ip", help="The IP address.")]
IpDefaults = Annotated[bool, typer.Option("--ip-defaults", help="The default of all IP addresses.")]


def _refuse_tls(file: str | None) -> None:
    if file is not None:
        raise typer.BadParameter("klamm speaks to ZooKeeper without TLS; give --bootstrap-server instead")


ZooKeeperTls = Annotated[
    str | None,
    typer.Option("--zk-tls-config-file", metavar="FILE", callback=_refuse_tls, hidden=True, help="Not supported."),
]


# -- the commands -------------------------------------------------------------------------------------------------


@app.command(
    cls=DefaultIsName,
    epilog="Example: klamm configs describe --topic orders --all",
)
def describe(
    entity_type: EntityType = None,
    entity_name: EntityName = None,
    entity_default: EntityDefault = False,
    topic: Topic = None,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    user: User = None,
    user_defaults: UserDefaults = False,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    broker_logger: BrokerLogger = None,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    describe_all: Annotated[
        bool, typer.Option("--all", help="Show static configs and defaults too, not only what was set dynamically.")
    ] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = None,
    zk_tls_config_file: ZooKeeperTls = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show configs with their values, sources and synonyms."""
    short = _short(
        {TOPICS: topic, CLIENTS: client, USERS: user, BROKERS: broker, BROKER_LOGGERS: broker_logger, IPS: ip},
        {CLIENTS: client_defaults, USERS: user_defaults, BROKERS: broker_defaults, IPS: ip_defaults},
    )
    entity = parse_entity(entity_type or [], entity_name or [], short, to_alter=False, zookeeper=zookeeper is not None)
    with _configs(bootstrap_server, zookeeper, command_config) as configs:
        found = configs.describe(entity, describe_all=describe_all)
    if as_json:
        print_line(json.dumps([description.value() for description in found]))
        return
    for description in found:
        print_lines(description.lines())


@app.command(
    cls=DefaultIsName,
    epilog="Example: klamm configs alter --topic orders --add-config retention.ms=3600000 --delete-config segment.ms",
)
def alter(
    entity_type: EntityType = None,
    entity_name: EntityName = None,
    entity_default: EntityDefault = False,
    topic: Topic = None,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    user: User = None,
    user_defaults: UserDefaults = False,
    broker: Broker = None,
    broker_defaults: BrokerDefaults = False,
    broker_logger: BrokerLogger = None,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    add_config: Annotated[
        str | None,
        typer.Option(
            "--add-config", metavar="K=V,...", help="Configs to set. Square brackets keep commas: k1=v1,k2=[v1,v2]."
        ),
    ] = None,
    add_config_file: Annotated[
        Path | None, typer.Option("--add-config-file", metavar="FILE", help="Configs to set, as a properties file.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="K,...", help="Configs to delete.")
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = None,
    zk_tls_config_file: ZooKeeperTls = None,
    command_config: CommandConfig = None,
    yes: Yes = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Set and delete configs. Shows the old and the new value of each, and asks."""
    short = _short(
        {TOPICS: topic, CLIENTS: client, USERS: user, BROKERS: broker, BROKER_LOGGERS: broker_logger, IPS: ip},
        {CLIENTS: client_defaults, USERS: user_defaults, BROKERS: broker_defaults, IPS: ip_defaults},
    )
    entity = parse_entity(entity_type or [], entity_name or [], short, to_alter=True, zookeeper=zookeeper is not None)
    additions = parse_additions(add_config, None if add_config_file is None else read_properties(add_config_file))
    deletions = parse_deletions(delete_config or [])
    require_changes(additions, deletions)
    with _configs(bootstrap_server, zookeeper, command_config) as configs:
        changes = plan(entity, configs.read(entity), additions, deletions)
        configs.check(entity, changes)
        count = sum(not change.does_nothing for change in changes)
        question = f"Change {counted(count, 'config')} of {entity}?"
        # The command line may have a password.
        look = ("configs", "describe", *(option for part in entity.parts for option in part.options))
        confirm(plan_lines(entity, changes), question, yes=yes or force or not count, look=look)
        configs.apply(entity, changes)
    print_line(
        json.dumps(plan_value(entity, changes)) if as_json else completed_line(entity, zookeeper=zookeeper is not None)
    )


def _short(names: dict[str, str | None], defaults: dict[str, bool]) -> Sequence[Part]:
    """The entity that the short options name."""
    named = [Part(entity_type, name) for entity_type, name in names.items() if name is not None]
    if empty := [part.type for part in named if not part.name]:
        raise typer.BadParameter(f"the name is empty; for the default use --{empty[0][:-1]}-defaults, if there is one")
    return [*named, *(Part(entity_type, DEFAULT) for entity_type, is_given in defaults.items() if is_given)]


@contextmanager
def _configs(
    bootstrap_server: str, zookeeper: str | None, command_config: Path | None
) -> "Iterator[BrokerConfigs | ZnodeConfigs]":
    """The configurations, through the brokers or in ZooKeeper."""
    if zookeeper is not None:
        from klamm.cli.configs.over_znodes import ZnodeConfigs

        yield ZnodeConfigs(zookeeper)
        return
    from klamm.cli.configs.over_brokers import BrokerConfigs

    with client_in_thread(command_options(bootstrap_server, command_config)) as client:
        yield BrokerConfigs(client)
