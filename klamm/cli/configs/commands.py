"""The commands `klamm configs describe` and `klamm configs alter`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

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
    Entity,
    Part,
    parse_entity,
)
from klamm.cli.configs.views import completed_line
from klamm.cli.shared.confirm import Force, Yes, confirm
from klamm.cli.shared.options import Commands, ZooKeeperOptions

if TYPE_CHECKING:
    from klamm.cli.configs.over_brokers import BrokerConfigs
    from klamm.cli.configs.over_znodes import ZnodeConfigs

app = Commands("Describe and alter the configs of topics, brokers, broker loggers, users, clients and IP addresses.")


class DefaultIsName(TyperCommand):
    """A command that takes each --entity-default as an --entity-name with an empty name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, [f"--entity-name={DEFAULT}" if argument == "--entity-default" else argument for argument in args]
        )


@dataclass(frozen=True)
class EntityOptions:
    """The entity whose configs are meant, in the long form of Kafka's tool or in the short one."""

    entity_type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE",
            help="topics, brokers, broker-loggers, users, clients or ips; users and clients may be combined.",
        ),
    ] = None
    entity_name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The name of the entity of that type.")
    ] = None
    entity_default: Annotated[bool, typer.Option(help="The default of that type, instead of a name.")] = False
    topic: Annotated[str | None, typer.Option(help="The topic's name.")] = None
    client: Annotated[str | None, typer.Option(metavar="ID", help="The client's id.")] = None
    client_defaults: Annotated[bool, typer.Option(help="The default of all clients.")] = False
    user: Annotated[str | None, typer.Option(metavar="PRINCIPAL", help="The user's principal name.")] = None
    user_defaults: Annotated[bool, typer.Option(help="The default of all users.")] = False
    broker: Annotated[str | None, typer.Option(metavar="ID", help="The broker's id.")] = None
    broker_defaults: Annotated[bool, typer.Option(help="The default of all brokers.")] = False
    broker_logger: Annotated[str | None, typer.Option(metavar="ID", help="The broker whose loggers are meant.")] = None
    ip: Annotated[str | None, typer.Option(help="The IP address.")] = None
    ip_defaults: Annotated[bool, typer.Option(help="The default of all IP addresses.")] = False

    def entity(self, *, to_alter: bool, zookeeper: bool) -> Entity:
        """Raises typer.BadParameter."""
        names = {
            TOPICS: self.topic,
            CLIENTS: self.client,
            USERS: self.user,
            BROKERS: self.broker,
            BROKER_LOGGERS: self.broker_logger,
            IPS: self.ip,
        }
        defaults = {
            CLIENTS: self.client_defaults,
            USERS: self.user_defaults,
            BROKERS: self.broker_defaults,
            IPS: self.ip_defaults,
        }
        named = [Part(entity_type, name) for entity_type, name in names.items() if name is not None]
        if empty := [part.type for part in named if not part.name]:
            raise typer.BadParameter(
                f"the name is empty; for the default use --{empty[0][:-1]}-defaults, if there is one"
            )
        short = [*named, *(Part(entity_type, DEFAULT) for entity_type, is_given in defaults.items() if is_given)]
        return parse_entity(
            self.entity_type or [], self.entity_name or [], short, to_alter=to_alter, zookeeper=zookeeper
        )


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
    named: EntityOptions,
    describe_all: Annotated[
        bool, typer.Option("--all", help="Show static configs and defaults too, not only what was set dynamically.")
    ] = False,
    *,
    cluster: ZooKeeperOptions,
    zk_tls_config_file: ZooKeeperTls = None,
) -> None:
    """Show configs with their values, sources and synonyms."""
    entity = named.entity(to_alter=False, zookeeper=cluster.zookeeper is not None)
    with _configs(cluster) as configs:
        found = configs.describe(entity, describe_all=describe_all)
    lines = (line for description in found for line in description.lines())
    cluster.show([description.value() for description in found], lines)


@app.command(
    cls=DefaultIsName,
    epilog="Example: klamm configs alter --topic orders --add-config retention.ms=3600000 --delete-config segment.ms",
)
def alter(
    named: EntityOptions,
    add_config: Annotated[
        str | None,
        typer.Option(metavar="K=V,...", help="Configs to set. Square brackets keep commas: k1=v1,k2=[v1,v2]."),
    ] = None,
    add_config_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Configs to set, as a properties file.")
    ] = None,
    delete_config: Annotated[list[str] | None, typer.Option(metavar="K,...", help="Configs to delete.")] = None,
    *,
    cluster: ZooKeeperOptions,
    zk_tls_config_file: ZooKeeperTls = None,
    yes: Yes = False,
    force: Force = False,
) -> None:
    """Set and delete configs. Shows the old and the new value of each, and asks."""
    entity = named.entity(to_alter=True, zookeeper=cluster.zookeeper is not None)
    additions = parse_additions(add_config, None if add_config_file is None else read_properties(add_config_file))
    deletions = parse_deletions(delete_config or [])
    require_changes(additions, deletions)
    with _configs(cluster) as configs:
        changes = plan(entity, configs.read(entity), additions, deletions)
        configs.check(entity, changes)
        count = sum(not change.does_nothing for change in changes)
        question = f"Change {counted(count, 'config')} of {entity}?"
        # After an interrupt, the command line is not repeated: it may hold a password.
        look = ("configs", "describe", *(option for part in entity.parts for option in part.options))
        confirm(plan_lines(entity, changes), question, yes=yes or force or not count, look=look)
        configs.apply(entity, changes)
    cluster.show(plan_value(entity, changes), [completed_line(entity, zookeeper=cluster.zookeeper is not None)])


@contextmanager
def _configs(cluster: ZooKeeperOptions) -> "Iterator[BrokerConfigs | ZnodeConfigs]":
    """The configurations, through the brokers or in ZooKeeper."""
    if cluster.zookeeper is not None:
        from klamm.cli.configs.over_znodes import ZnodeConfigs

        yield ZnodeConfigs(cluster.zookeeper)
        return
    from klamm.cli.configs.over_brokers import BrokerConfigs

    with cluster.client() as client:
        yield BrokerConfigs(client)
