"""`klamm broker` and `klamm zookeeper`: one server in this process."""

from pathlib import Path
from typing import Annotated

import typer

from klamm.access.properties import parse_pairs, read_properties, with_absolute_directories
from klamm.cli.shared.output import print_line


def broker(
    file: Annotated[Path, typer.Argument(metavar="FILE.properties", help="The broker's server.properties.")],
    override: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Replace a property; may be repeated.")
    ] = None,
    logs_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="LOG_DIR",
            help="Directory of state-change.log and controller.log; by default their lines go to stderr.",
        ),
    ] = None,
    trace_state_changes: Annotated[
        bool, typer.Option(help="In state-change.log, name every partition in every request (level TRACE).")
    ] = False,
) -> None:
    """Run one broker until SIGTERM or Ctrl-C; a second signal ends it at once."""
    properties = {**read_properties(file), **parse_pairs("--override", override or [])}
    from klamm.processes.servers import BrokerServer
    from klamm.processes.serving import configure_logging, run_server

    configure_logging()
    if trace_state_changes:
        from klamm.base.log_lines import STATE_CHANGE_LOGGER, TRACE

        STATE_CHANGE_LOGGER.setLevel(TRACE)
    logs = None if logs_dir is None else str(logs_dir.absolute())
    server = BrokerServer(with_absolute_directories(properties), logs)
    run_server(server, lambda details: None)


def zookeeper(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free port.")],
    directory: Annotated[Path, typer.Option("--dir", help="Data directory; made if absent.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Run the embedded ZooKeeper server until SIGTERM or Ctrl-C; a second signal ends it at once."""
    from klamm.processes.servers import EmbeddedZooKeeper
    from klamm.processes.serving import configure_logging, run_server

    configure_logging()
    server = EmbeddedZooKeeper(str(directory.absolute()), host, port)
    run_server(server, lambda details: print_line(f"{details['host']}:{details['port']}", flush=True))
