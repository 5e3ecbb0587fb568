"""`klamm zookeeper`: the embedded ZooKeeper server in this process."""

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.shared.output import print_line


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
