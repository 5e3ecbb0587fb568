"""`klamm cockpit`: serves the page until Ctrl-C."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.processes.errors import ToolError
from klamm.tools.clients import DEFAULT_BOOTSTRAP, LOOK_MS, AsJson, BootstrapServer, CommandConfig, command_options
from klamm.tools.output import print_line
from klamm.tools.words import address_text
from klamm.tools.zookeeper_access import ZooKeeper

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from klamm.client.options import ClientOptions
    from klamm.tools.cockpit.answers import Cockpit
    from klamm.tools.cockpit.server import Failure
    from klamm.tools.cockpit.source import Source

HOST: Final = "127.0.0.1"
# The page as a process of `klamm up`, which does not import it.
COCKPIT_NAME: Final = "cockpit"
COCKPIT: Final = "klamm.tools.cockpit.process:CockpitServer"

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes any free port.")]


def cockpit(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A recording to open instead of a live cluster.", show_default=False),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. Others than this machine see it, too, with"
            " any but 127.0.0.1; they need the token.",
        ),
    ] = HOST,
    port: Port = 0,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let the page move the controller, elect leaders, and so on.")
    ] = False,
    state_change_logs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="A directory with state-change.log files of the brokers, for the stories of partitions.",
        ),
    ] = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show a cluster and its controller at work on a web page, until Ctrl-C. The printed address opens it.

    With FILE, the page shows each moment of a recording, made by klamm record, a failed test or the simulator.
    """
    check_installed()
    if file is not None:
        if allow_changes or zookeeper is not None:
            raise ToolError("--allow-changes and --zookeeper are for a live cluster, not for a recording")
        run_recording(file, host, port, as_json=as_json)
        return
    options = command_options(bootstrap_server, command_config)
    logs = None if state_change_logs is None else state_change_logs.resolve()
    run(
        options,
        zookeeper,
        host,
        port,
        allow_changes=allow_changes,
        as_json=as_json,
        command_config=command_config,
        state_change_logs=logs,
    )


def check_installed() -> None:
    """Raises ToolError when the page's packages are not installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ToolError(f"the cockpit needs {' and '.join(missing)}: pip install 'klamm[cockpit]'")


def run(
    options: "ClientOptions",
    zookeeper: str | None,
    host: str,
    port: int,
    *,
    allow_changes: bool,
    as_json: bool,
    command_config: Path | None = None,
    state_change_logs: Path | None = None,
) -> None:
    """Serves the page until SIGINT or SIGTERM. Raises ToolError when no broker answers or the port cannot be used."""
    import uvloop

    from klamm.tools.cockpit.answers import Cockpit

    reach: tuple[str, ...] = ("--bootstrap-server", ",".join(address_text(*each) for each in options.bootstrap))
    if command_config is not None:
        reach = (*reach, "--command-config", str(command_config))
    through_zookeeper = () if zookeeper is None else ("--zookeeper", zookeeper)

    def make_cockpit(source: "Source") -> Cockpit:
        return Cockpit(source, allow_changes, reach, through_zookeeper, state_change_logs)

    uvloop.run(_serve(options, zookeeper, host, port, make_cockpit, as_json=as_json))


def run_recording(file: Path, host: str, port: int, *, as_json: bool) -> None:
    """As `run`, for a recording. Raises ToolError for a file that is no recording."""
    import uvloop

    from klamm.recording.blocks import RecordingError
    from klamm.recording.reader import Recording
    from klamm.tools.cockpit.recorded import RecordedCluster

    try:
        recording = Recording(file)
    except RecordingError as error:
        raise ToolError(str(error)) from None
    if recording.trouble is not None:
        print_line(f"klamm: {recording.trouble}", file=sys.stderr)

    async def serve_recording() -> None:
        from klamm.tools.cockpit.answers import Cockpit
        from klamm.tools.cockpit.server import Failure, listen

        with listen(host, port) as listening:
            await _show(Cockpit(RecordedCluster(recording)), listening, host, Failure(), as_json=as_json)

    uvloop.run(serve_recording())


async def _serve(
    options: "ClientOptions",
    zookeeper: str | None,
    host: str,
    port: int,
    make_cockpit: "Callable[[Source], Cockpit]",
    *,
    as_json: bool,
) -> None:
    import asyncio

    from klamm.client.cluster import make_client
    from klamm.environment import SystemEnvironment
    from klamm.processes.garbage import GarbageCollection
    from klamm.tools.clients import cluster_errors
    from klamm.tools.cockpit.cluster import open_cluster
    from klamm.tools.cockpit.server import Failure, listen

    garbage = GarbageCollection(asyncio.get_running_loop())
    with listen(host, port) as listening, cluster_errors():
        client = make_client(options, SystemEnvironment().random)
        await client.reach(LOOK_MS)
        failure = Failure()
        cluster = await open_cluster(client, zookeeper, failure.report)
        await _show(make_cockpit(cluster), listening, host, failure, as_json=as_json)
    garbage.stop()


async def _show(
    cockpit: "Cockpit", listening: "socket.socket", host: str, failure: "Failure", *, as_json: bool
) -> None:
    """Prints the page's address and serves it; closes the source at the end. Raises the failure."""
    from klamm.tools.cockpit.server import address_of, make_app, serve

    app = make_app(cockpit, host)
    url = address_of(app, listening)
    print_line(json.dumps({"url": url}) if as_json else f"The cockpit is at {url} (Ctrl-C stops it)", flush=True)
    await serve(app, listening, cockpit.source.close, failure)
