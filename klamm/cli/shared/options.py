"""The options that commands share, and the groups of commands that understand them.

If the type of a command's parameter is a dataclass, each field becomes an option. So a command declares all options of
a cluster in one line, and gets a value that connects and prints:

    @app.command(epilog="Example: klamm brokers list")
    def list_brokers(cluster: TimedOptions) -> None:
        with cluster.client() as client:
            facts = client.call(read_facts)
        cluster.show(values(facts), table_lines(facts))

What must stay true: this module is imported for every command, so it imports nothing that only some commands need.
"""

import copy
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar, get_args

import typer
from typer.models import OptionInfo

from klamm.access.clients import command_options
from klamm.access.zookeeper import run_with_zookeeper
from klamm.cli.shared.clients import AsJson, ClientInThread, client_in_thread
from klamm.cli.shared.output import show

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.client.options import ClientOptions
    from klamm.znodes.store import KafkaZooKeeper

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
# The longest string in a request.
MAX_STRING_BYTES: Final = 2**15 - 1
# These options of a cluster stand at the end of the help; the others stand where the command has its parameter.
_LAST: Final = ("limit_ms", "command_config", "as_json")


def _check_topic_name(name: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
        raise typer.BadParameter(f"{name!r} is not 1 to 249 letters, digits, '.', '_' or '-'")
    return name


def check_bootstrap_server(text: str) -> str:
    """Raises typer.BadParameter unless the text is host:port,host:port."""
    for address in text.split(","):
        match = re.fullmatch(r"(?:[0-9A-Za-z._-]+|\[[0-9A-Za-z:.%]+\]):([0-9]{1,5})", address)
        if match is None or not 0 < int(match[1]) < 65536:
            raise typer.BadParameter(f"{address!r} is not host:port with a port from 1 to 65535")
    return text


def check_transactional_id(text: str | None) -> str | None:
    """Raises typer.BadParameter for an id that is too long for a request, or empty."""
    if text is not None and not 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_STRING_BYTES:
        raise typer.BadParameter(f"a transactional id has 1 to {MAX_STRING_BYTES} bytes")
    return text


TopicName = Annotated[str, typer.Option("--topic", callback=_check_topic_name, help="The topic's name.")]
BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT,...",
        callback=check_bootstrap_server,
        help="Brokers to connect to first.",
    ),
]
CommandConfig = Annotated[
    Path | None, typer.Option("--command-config", metavar="FILE", help="Client properties, as Kafka's tools take them.")
]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh the output until Ctrl-C.")]


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster that a command works on, and the form of its output."""

    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP
    command_config: CommandConfig = None
    as_json: AsJson = False

    def client_options(self, default_timeout_ms: int | None = None) -> "ClientOptions":
        """The options of a client. Raises ToolError for a property that is unknown or invalid."""
        return command_options(self.bootstrap_server, self.command_config, default_timeout_ms=default_timeout_ms)

    def client(self) -> AbstractContextManager[ClientInThread]:
        """A client of the brokers. Raises ToolError like `client_in_thread`."""
        return client_in_thread(self.client_options())

    def call(self, work: "Callable[[ClusterClient], Awaitable[T]]") -> T:
        """The result of `work(client)`, for commands that need the client once. Raises ToolError."""
        with self.client() as client:
            return client.call(work)

    def show(self, value: Any, lines: Iterable[str], *, keep: str = "") -> None:
        """Prints the value with --json, otherwise the lines."""
        show(value, lines, as_json=self.as_json, keep=keep)


def _timeout(default_ms: int) -> Any:
    return typer.Option(
        "--timeout",
        min=1,
        metavar="MS",
        help=f"How long to wait for brokers and to retry; {default_ms} unless --command-config says.",
    )


@dataclass(frozen=True)
class TimedOptions(ClusterOptions):
    """For commands that give up soon unless --timeout or --command-config says otherwise."""

    default_timeout_ms: ClassVar[int] = 5000
    limit_ms: Annotated[int | None, _timeout(5000)] = None

    def client_options(self, default_timeout_ms: int | None = None) -> "ClientOptions":
        return command_options(
            self.bootstrap_server,
            self.command_config,
            self.limit_ms,
            default_timeout_ms=default_timeout_ms or self.default_timeout_ms,
        )


@dataclass(frozen=True)
class PatientOptions(TimedOptions):
    """Like `TimedOptions`, with more time."""

    default_timeout_ms: ClassVar[int] = 10_000
    limit_ms: Annotated[int | None, _timeout(10_000)] = None


@dataclass(frozen=True)
class ZooKeeperOptions(ClusterOptions):
    """For commands that can work on ZooKeeper's znodes instead of through the brokers."""

    zookeeper: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,.../CHROOT",
            help="Work on ZooKeeper's znodes at this address, instead of through the brokers.",
        ),
    ] = None

    def run(
        self,
        over_brokers: "Callable[[ClusterClient], Awaitable[T]]",
        over_znodes: "Callable[[KafkaZooKeeper], Awaitable[T]]",
    ) -> T:
        """The result of `over_znodes` with --zookeeper, otherwise of `over_brokers`. Raises ToolError."""
        return self.call(over_brokers) if self.zookeeper is None else run_with_zookeeper(self.zookeeper, over_znodes)


class Commands(typer.Typer):
    """A group of commands. Their parameters may be dataclasses of options."""

    def __init__(self, help_text: str, **settings: Any) -> None:
        super().__init__(help=help_text, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, *name: Any, **settings: Any) -> Callable[[F], F]:
        register = super().command(*name, **settings)

        def add(function: F) -> F:
            register(_with_options(function))
            return function

        return add


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its dataclass parameters replaced by one parameter for each field. A flag has one name."""
    signature = inspect.signature(function)
    fields = {
        name: inspect.signature(each.annotation).parameters
        for name, each in signature.parameters.items()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        for name, of_dataclass in fields.items():
            given[name] = signature.parameters[name].annotation(**{each: given.pop(each) for each in of_dataclass})
        return function(**given)

    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=_with_one_name(each.name, each.annotation))
        for name, parameter in signature.parameters.items()
        for each in (fields[name].values() if name in fields else [parameter])
    ]
    parameters.sort(key=lambda each: _LAST.index(each.name) if each.name in _LAST else -1)
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _with_one_name(name: str, annotation: Any) -> Any:
    """Gives a flag without an explicit option name only --NAME; typer would add --no-NAME."""
    of, *info = get_args(annotation) or (None,)
    # In an annotation, typer.Option stores its first name as `default`.
    if of is not bool or not isinstance(info[0], OptionInfo) or info[0].default is not ...:
        return annotation
    option = copy.copy(info[0])
    option.param_decls = (f"--{name.replace('_', '-')}",)
    return Annotated[bool, option]
