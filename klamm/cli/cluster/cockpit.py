"""`klamm cockpit`: serves the page until Ctrl-C."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from klamm.base.words import address_text
from klamm.cli.shared.options import ZooKeeperOptions
from klamm.cli.shared.output import print_line
from klamm.processes.tool_errors import ToolError, describe_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.client.options import ClientOptions
    from klamm.cockpit.page_api import Cockpit
    from klamm.cockpit.server import Failure, WebServer
    from klamm.cockpit.source import Source

HOST: Final = "127.0.0.1"
# `klamm up` runs the page as a process of its own. It names the target here instead of importing it.
COCKPIT_NAME: Final = "cockpit"
COCKPIT: Final = "klamm.cockpit.process:CockpitServer"

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes any free port.")]
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{16,200}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the page is served, the file with the token that opens it, and the host names under which it answers."""

    host: str
    port: int
    token_file: Path | None
    names: "Sequence[str]"

    def server(self, failure: "Failure") -> "WebServer":
        """The server of the page. Raises ToolError for a token file without a valid token."""
        from klamm.cockpit.server import WebServer

        token = None if self.token_file is None else kept_token(self.token_file)
        return WebServer(self.host, self.port, failure.report, token=token, names=self.names)


def cockpit(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A recording to open instead of a live cluster.", show_default=False),
    ] = None,
    *,
    cluster: ZooKeeperOptions,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on. With any but 127.0.0.1 other machines can open the page too; they need the"
            " token.",
        ),
    ] = HOST,
    port: Port = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Keep the token in this file. With --port, the page then has the same address at each start.",
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also serve the page under this host name; * allows any name. May be repeated.",
            show_default=False,
        ),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option(help="Let the page move the controller, elect leaders, and so on.")
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
) -> None:
    """Show a cluster and its controller at work on a web page, until Ctrl-C. The printed address opens it.

    With FILE, the page shows each moment of a recording, made by klamm record, a failed test or the simulator.
    """
    place = Place(host, port, token_file, allow_host or ())
    if file is not None:
        if allow_changes or cluster.zookeeper is not None:
            raise ToolError("--allow-changes and --zookeeper are for a live cluster, not for a recording")
        run_recording(file, place, as_json=cluster.as_json)
        return
    run(cluster, place, state_change_logs and state_change_logs.resolve(), allow_changes=allow_changes)


def kept_token(file: Path) -> str:
    """The token in a file; a file that does not exist gets a new one. Raises ToolError."""
    import os
    import secrets

    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
            opened.write(secrets.token_urlsafe(24) + "\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise ToolError(f"--token-file: {describe_os_error(error)}") from error
    try:
        token = file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise ToolError(f"--token-file: {describe_os_error(error)}") from error
    if not _TOKEN.fullmatch(token):
        raise ToolError(f"--token-file: {file} has no token: 16 to 200 letters, digits, '_' and '-' on one line")
    return token


def run(cluster: ZooKeeperOptions, place: Place, state_change_logs: Path | None, *, allow_changes: bool) -> None:
    """Serves the page until SIGINT or SIGTERM. Raises ToolError when no broker answers or the port cannot be used."""
    import uvloop

    from klamm.cockpit.page_api import Cockpit

    options = cluster.client_options()
    reach: tuple[str, ...] = ("--bootstrap-server", ",".join(address_text(*each) for each in options.bootstrap))
    if cluster.command_config is not None:
        reach = (*reach, "--command-config", str(cluster.command_config))
    through_zookeeper = () if cluster.zookeeper is None else ("--zookeeper", cluster.zookeeper)

    def make_cockpit(source: "Source") -> Cockpit:
        return Cockpit(source, allow_changes, reach, through_zookeeper, state_change_logs)

    uvloop.run(_serve(options, cluster.zookeeper, place, make_cockpit, as_json=cluster.as_json))


def run_recording(file: Path, place: Place, *, as_json: bool) -> None:
    """Like `run`, for a recording. Raises ToolError for a file that is not a recording."""
    import uvloop

    from klamm.cockpit.recorded.cluster import RecordedCluster
    from klamm.recording.blocks import RecordingError
    from klamm.recording.reader import Recording

    try:
        recording = Recording(file)
    except RecordingError as error:
        raise ToolError(str(error)) from None
    if recording.trouble is not None:
        print_line(f"klamm: {recording.trouble}", file=sys.stderr)

    async def serve_recording() -> None:
        from klamm.cockpit.page_api import Cockpit
        from klamm.cockpit.server import Failure

        failure = Failure()
        server = place.server(failure)
        await server.open()
        await _show(Cockpit(RecordedCluster(recording)), server, failure, as_json=as_json)

    uvloop.run(serve_recording())


async def _serve(
    options: "ClientOptions",
    zookeeper: str | None,
    place: Place,
    make_cockpit: "Callable[[Source], Cockpit]",
    *,
    as_json: bool,
) -> None:
    import asyncio

    from klamm.access.clients import cluster_errors, reach_cluster
    from klamm.base.system_environment import SystemEnvironment
    from klamm.client.cluster import make_client
    from klamm.cockpit.live.cluster import open_cluster
    from klamm.cockpit.server import Failure
    from klamm.processes.garbage import GarbageCollection

    garbage = GarbageCollection(asyncio.get_running_loop())
    failure = Failure()
    server = place.server(failure)
    await server.open()
    with cluster_errors():
        client = make_client(options, SystemEnvironment().random)
        await reach_cluster(client, options)
        cluster = await open_cluster(client, zookeeper, failure.report)
        await _show(make_cockpit(cluster), server, failure, as_json=as_json)
    garbage.stop()


async def _show(cockpit: "Cockpit", server: "WebServer", failure: "Failure", *, as_json: bool) -> None:
    """Prints the page's address and serves it; closes the source at the end. Raises the failure."""
    from klamm.cockpit.server import serve

    await server.show(cockpit)
    text = f"The cockpit is at {' and '.join(server.urls)} (Ctrl-C stops it)"
    print_line(json.dumps({"url": server.urls[0]}) if as_json else text, flush=True)
    await serve(server, cockpit.source.close, failure)
