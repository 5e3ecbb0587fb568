"""`klamm faults`: injects faults into a running cluster of `klamm up --control-port` or `Cluster(control=True)`.

The commands speak HTTP with the cluster's control port (`klamm.faults.control_port`). They find it by the file
`control.json` in the cluster's directory, or by the environment: KLAMM_CONTROL_URL and KLAMM_CONTROL_TOKEN. A token is
never an option, because other users can see the options of a running command.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.shared.clients import AsJson
from klamm.cli.shared.options import Commands
from klamm.cli.shared.output import print_line, print_lines, stream_line
from klamm.processes.tool_errors import ToolError, describe_os_error

if TYPE_CHECKING:
    from klamm.faults.commands import Command

app = Commands("Inject faults into a running cluster.")

HTTP_TIMEOUT_S = 90.0
# The longest wait of one request; a longer wait takes several requests.
WAIT_MS = 50_000

Directory = Annotated[
    Path,
    typer.Option("--dir", help="The directory of klamm up. KLAMM_CONTROL_URL and KLAMM_CONTROL_TOKEN take precedence."),
]
DEFAULT_DIRECTORY = Path("klamm-data")
FaultId = Annotated[int, typer.Argument(min=1, help="The fault's number, as klamm faults list shows it.")]
ServerName = Annotated[str, typer.Argument(metavar="SERVER", help="The id of a broker, or zookeeper.")]
Kind = Annotated[str, typer.Argument(help="The kind, answers.fail for example; klamm faults schema shows all.")]
Fields = Annotated[
    list[str] | None, typer.Argument(metavar="FIELD=VALUE ...", help="The fields, api=Produce for example.")
]


@app.command("list", epilog="Example: klamm faults list --json")
def list_faults(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """List the active faults, with how often each was asked and how often it struck."""
    found = Port.find(directory).request("GET", "/v1/faults")
    if as_json:
        print_line(json.dumps(found["faults"]))
        return
    for fault in found["faults"]:
        print_line(_line(fault))


@app.command(epilog="Example: klamm faults inject answers.fail api=Produce error=NOT_LEADER_OR_FOLLOWER times=1")
def inject(
    kind: Kind, fields: Fields = None, directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False
) -> None:
    """Inject a fault; return when it holds in every broker that it concerns."""
    from klamm.faults.commands import Fault

    fault = parse_command(kind, fields or [])
    if not isinstance(fault, Fault):
        raise typer.BadParameter(f"{kind} is an action: klamm faults perform {kind} ...")
    _print(Port.find(directory).request("POST", "/v1/faults", fault.to_json()), as_json)


@app.command(epilog="Example: klamm faults perform elections.elect topic=orders partition=0 to=2")
def perform(kind: Kind, fields: Fields = None, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Have the cluster carry out an action (an election, the end of a session), and print the result as JSON."""
    from klamm.faults.commands import Action

    action = parse_command(kind, fields or [])
    if not isinstance(action, Action):
        raise typer.BadParameter(f"{kind} is a fault: klamm faults inject {kind} ...")
    print_line(json.dumps(Port.find(directory).request("POST", "/v1/actions", action.to_json())["result"]))


@app.command(epilog="Example: klamm faults show 1 --hits 1 --timeout 30")
def show(
    fault: FaultId,
    hits: Annotated[int, typer.Option(min=0, help="Wait until the fault has struck this many times.")] = 0,
    timeout: Annotated[float, typer.Option(min=0, max=86_400, help="How long to wait for the hits, in seconds.")] = 30,
    directory: Directory = DEFAULT_DIRECTORY,
    as_json: AsJson = False,
) -> None:
    """Show a fault, or wait until it has struck."""
    port = Port.find(directory)
    left_ms = int(timeout * 1000)
    while True:
        wait_ms = min(left_ms, WAIT_MS)
        found = port.request("GET", f"/v1/faults/{fault}?hits={hits}&timeout_ms={wait_ms}")
        left_ms -= wait_ms
        if found["hits"] >= hits or left_ms <= 0 or not found["active"]:
            break
    _print(found, as_json)
    if found["hits"] < hits:
        when = f"within {timeout:g} s" if found["active"] else "until it was removed"
        raise ToolError(f"fault {fault} has struck {found['hits']} times {when}, not {hits}")


@app.command(epilog="Example: klamm faults remove 1")
def remove(fault: FaultId, directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False) -> None:
    """Remove a fault and show its last counts."""
    _print(Port.find(directory).request("DELETE", f"/v1/faults/{fault}"), as_json)


@app.command(epilog="Example: klamm faults heal")
def heal(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Remove all faults, and resume and start all servers."""
    Port.find(directory).request("POST", "/v1/heal")


@app.command(epilog="Example: klamm faults history --follow")
def history(
    follow: Annotated[bool, typer.Option(help="Also print new entries as they happen, until Ctrl-C.")] = False,
    directory: Directory = DEFAULT_DIRECTORY,
    as_json: AsJson = False,
) -> None:
    """Print the cluster's history, one entry a line: elections, ISR changes, truncations, servers, faults."""
    port = Port.find(directory)
    after = 0
    while True:
        wait_ms = WAIT_MS if follow else 0
        found = port.request("GET", f"/v1/history?after={after}&timeout_ms={wait_ms}")
        for entry in found["entries"]:
            stream_line(json.dumps(entry) if as_json else _entry_line(entry))
        if found["next"] == after and not follow:
            break
        after = found["next"]


@app.command(epilog="Example: klamm faults server 1 kill")
def server(
    server_name: ServerName,
    operation: Annotated[str, typer.Argument(metavar="kill|stop|start|pause|resume", help="What to do with it.")],
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Kill, stop, start, pause or resume a server; return when that is done."""
    if operation not in ("kill", "stop", "start", "pause", "resume"):
        raise typer.BadParameter(f"{operation!r} is not kill, stop, start, pause or resume")
    _parse_server(server_name)
    Port.find(directory).request("POST", f"/v1/servers/{server_name}/{operation}")


@app.command(epilog="Example: klamm faults schema")
def schema() -> None:
    """Print the JSON Schema of all faults and actions, with the text of each."""
    from klamm.faults.commands.schema import schema as make

    print_lines(json.dumps(make(), indent=2).splitlines())


def parse_command(kind: str, fields: Sequence[str]) -> "Command":
    """The fault or action, from FIELD=VALUE texts. Raises typer.BadParameter. Pure."""
    from klamm.faults.commands import from_json, kinds

    types = kinds()[kind].field_types if kind in kinds() else {}
    values: dict[str, Any] = {"kind": kind}
    for text in fields:
        name, equals, value = text.partition("=")
        if not equals or name == "kind":
            raise typer.BadParameter(f"{text!r} is not FIELD=VALUE")
        if name in values:
            raise typer.BadParameter(f"{name} is given twice")
        values[name] = _parse_value(value, str(types.get(name)))
    try:
        return from_json(values)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _parse_value(text: str, hint: str) -> Any:
    """The value of a field: JSON, else a string. A field that takes only strings gets the text as it is; a list may be
    written as 1,3."""
    if "tuple" in hint and not text.startswith("["):
        return [_parse_value(item, hint.replace("tuple", "")) for item in text.split(",") if item]
    takes_only_text = "str" in hint and not any(other in hint for other in ("int", "float", "bool"))
    if takes_only_text:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse_server(name: str) -> int | str:
    if name == "zookeeper":
        return name
    if not re.fullmatch("[0-9]{1,9}", name, re.ASCII):
        raise typer.BadParameter(f"{name!r} is neither the id of a broker nor zookeeper")
    return int(name)


# -- the control port -------------------------------------------------------------------------------------------------


class Port:
    """A cluster's control port."""

    def __init__(self, url: str, token: str) -> None:
        match = re.fullmatch(r"http://((?:127\.0\.0\.1|localhost):[0-9]{1,5})/?", url)
        if match is None:
            raise ToolError(f"{url!r} is not the address of a control port; it is http://127.0.0.1:PORT")
        self._address = match[1]
        self._token = token

    @classmethod
    def find(cls, directory: Path, environment: Mapping[str, str] = os.environ) -> "Port":
        """The control port that the environment names, else that of the cluster in the directory. Raises ToolError."""
        if url := environment.get("KLAMM_CONTROL_URL"):
            token = environment.get("KLAMM_CONTROL_TOKEN")
            if not token:
                raise ToolError("KLAMM_CONTROL_URL is set, and KLAMM_CONTROL_TOKEN is not")
            return cls(url, token)
        file = directory / "control.json"
        try:
            found = json.loads(file.read_bytes())
            return cls(found["url"], found["token"])
        except FileNotFoundError:
            raise ToolError(
                f"there is no {file}: start the cluster with klamm up --control-port 0, or name its directory (--dir)"
            ) from None
        except OSError as error:
            raise ToolError(describe_os_error(error)) from error
        except (ValueError, KeyError, TypeError):
            raise ToolError(f"{file} is not the file of a control port") from None

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request and returns the JSON of its answer. Raises ToolError with the reason of a refusal."""
        connection = HTTPConnection(self._address, timeout=HTTP_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except OSError as error:
            raise ToolError(f"the control port {self._address}: {describe_os_error(error)}") from error
        except (HTTPException, ValueError):
            raise ToolError(f"{self._address} is not a control port of klamm") from None
        finally:
            connection.close()
        if response.status >= 400:
            raise ToolError(answer["error"])
        return answer


def _print(fault: dict[str, Any], as_json: bool) -> None:
    print_line(json.dumps(fault) if as_json else _line(fault))


def _line(fault: dict[str, Any]) -> str:
    fields = " ".join(f"{name}={_text(value)}" for name, value in fault["fault"].items() if name != "kind")
    state = "" if fault["active"] else ", removed"
    return f"{fault['id']}: {fault['fault']['kind']} {fields} ({fault['calls']} calls, {fault['hits']} hits{state})"


def _entry_line(entry: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(entry["time_ms"] / 1000).strftime("%H:%M:%S.%f")[:-3]
    rest = {name: value for name, value in entry.items() if name not in ("kind", "number", "time_ms")}
    return f"{when} {entry['kind']} " + " ".join(f"{name}={_text(value)}" for name, value in rest.items())


def _text(value: Any) -> str:
    return (
        ",".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)
    )
