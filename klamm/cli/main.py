"""The `klamm` command: its sub-commands, and how each of them ends (see `klamm.processes.tool_errors`).

Importing this module must stay quick: a sub-command imports its own modules when it runs.
"""

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from klamm import __version__
from klamm.base.patterns import PatternTooSlow
from klamm.cli import completion
from klamm.cli.cluster import brokers, cockpit, controller, faults, metrics, record, servers, status, up
from klamm.cli.configs import commands as configs
from klamm.cli.elect import commands as elect
from klamm.cli.groups import groups
from klamm.cli.log import commands as log
from klamm.cli.pipeline import pipeline, pipeline_run
from klamm.cli.reassign import command as reassign
from klamm.cli.records import consume, produce, transactions
from klamm.cli.shared import interrupts
from klamm.cli.shared.options import Commands
from klamm.cli.shared.output import finish, prepare, print_line, print_lines, print_traceback
from klamm.cli.topics import commands as topics
from klamm.cli.verify import command as verify
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, ToolError, describe_os_error

app = Commands(
    "A replicated log cluster that speaks Apache Kafka's protocol.",
    name="klamm",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up", epilog="Example: klamm up --brokers 3 --override log.retention.hours=24")(up.up)
app.command("broker", epilog="Example: klamm broker server.properties --override log.retention.hours=24")(
    servers.broker
)
app.command("zookeeper", epilog="Example: klamm zookeeper --port 2181 --dir /var/lib/klamm/zookeeper")(
    servers.zookeeper
)
app.add_typer(topics.app, name="topics")
app.add_typer(configs.app, name="configs")
app.add_typer(brokers.app, name="brokers")
app.command("status", epilog="Example: klamm status --bootstrap-server 127.0.0.1:9092")(status.status)
app.command("cockpit", epilog="Example: klamm cockpit --bootstrap-server 127.0.0.1:9092")(cockpit.cockpit)
app.command("record", epilog="Example: klamm record failover.klamm --bootstrap-server 127.0.0.1:9092 --seconds 60")(
    record.record
)
app.command("metrics", epilog="Example: klamm metrics --broker 1 --watch")(metrics.metrics)
app.add_typer(elect.app, name="elect")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(reassign.app, name="reassign")
app.add_typer(controller.app, name="controller")
app.add_typer(faults.app, name="faults")
app.add_typer(verify.app, name="verify")
app.add_typer(log.app, name="log")
pipeline.app.command("run", epilog="Example: klamm pipeline run orders.yaml --check")(pipeline_run.run)
pipeline.app.command("schema", epilog="Example: klamm pipeline schema")(pipeline_run.schema)
app.add_typer(pipeline.app, name="pipeline")
app.command("produce", epilog="Example: klamm produce --topic orders --file orders.txt --key-separator :")(
    produce.produce
)
app.command("consume", epilog="Example: klamm consume --topic orders --from-beginning --print-key --max-messages 10")(
    consume.consume
)
app.command("completion", epilog="Example: klamm completion bash")(completion.completion)
app.command("complete", hidden=True)(completion.complete)

# The base class of typer's errors about wrong arguments (its copy of click has no public name).
_CallError = typer.BadParameter.__mro__[2]


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"klamm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all commands stand before the command's name."""


def main() -> NoReturn:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs a command line and returns its exit code; errors are printed on stderr."""
    prepare()
    interrupts.begin(arguments)
    code = _run(arguments)
    try:
        finish()
    except ToolError as error:
        return code or _explain(error)
    return code


def _run(arguments: list[str]) -> int:
    try:
        # Without its standalone mode, typer returns the code of an Exit and raises every other exception.
        command = get_command(app)
        _keep_examples_whole(command)
        code = command.main(args=arguments, prog_name="klamm", standalone_mode=False)
        if code == EXIT_INTERRUPTED:
            # typer returns this code for a KeyboardInterrupt.
            interrupts.tell()
        return code if isinstance(code, int) else EXIT_OK
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader closed the output (klamm consume | head).
        return EXIT_OK
    except SystemExit as leaving:
        # typer turns a broken pipe into this exception.
        if isinstance(leaving.__context__, BrokenPipeError):
            return EXIT_OK
        raise
    except Exception as error:
        if _debugging(arguments):
            print_traceback(error)
        return _explain(error)


def _keep_examples_whole(command: Any) -> None:
    """Keeps each example on one line. Help texts are broken at hyphens too, and such an option cannot be copied."""
    if command.epilog:
        command.epilog = f"\b\n{command.epilog}"
    for each in getattr(command, "commands", {}).values():
        _keep_examples_whole(each)


def _debugging(arguments: list[str]) -> bool:
    """Whether --debug stands before the sub-command."""
    for argument in arguments:
        if argument == "--debug":
            return True
        if not argument.startswith("-"):
            break
    return False


def _explain(error: Exception) -> int:
    if isinstance(error, _CallError):
        code = EXIT_USAGE
        message = error.format_message()  # type: ignore[attr-defined]  # see _CallError
    else:
        message = _message(error)
        match error:
            case ToolError():
                code = error.exit_code
            case PatternTooSlow():
                code = EXIT_USAGE
            case _:
                code = EXIT_FAILED
    # A command line without arguments prints the help, which is not an error and gets no prefix.
    if not message or message.startswith("Usage:"):
        print_lines(message.split("\n"), file=sys.stderr)
    else:
        details = error.details if isinstance(error, ToolError) else ()
        print_lines([f"klamm: {message}", *details], file=sys.stderr)
    return code


def _message(error: Exception) -> str:
    match error:
        case ToolError() | PatternTooSlow():
            return str(error)
        case OSError():
            return describe_os_error(error)
        case _:
            return f"a fault of the program: {error!r} (klamm --debug ... shows where)"


if __name__ == "__main__":
    main()
