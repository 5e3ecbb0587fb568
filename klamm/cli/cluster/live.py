"""A live view: a command's output, refreshed until Ctrl-C."""

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from klamm.base.visible import visible
from klamm.cli.shared.output import print_line, stream_line
from klamm.processes.tool_errors import ToolError

REFRESH_EVERY_S: Final = 1.0


def watch(look: Callable[[], Any], to_lines: Callable[[Any], Iterable[str]], *, as_json: bool) -> None:
    """Shows the result of `look` about once a second: in place on a terminal, elsewhere whenever it has changed.

    With `as_json` each change is one line. After the first look, an error is shown and does not end the view.
    """
    shown = look()
    if not as_json and sys.stdout.isatty():
        _in_place(shown, look, to_lines)
        return
    _stream([json.dumps(shown)] if as_json else to_lines(shown))
    trouble = ""
    while True:
        time.sleep(REFRESH_EVERY_S)
        try:
            now = look()
        except ToolError as error:
            if str(error) != trouble:
                trouble = str(error)
                print_line(f"klamm: {trouble}; looking again", file=sys.stderr, flush=True)
            continue
        trouble = ""
        if now != shown:
            shown = now
            _stream([json.dumps(shown)] if as_json else to_lines(shown))


def _stream(lines: Iterable[str]) -> None:
    for line in lines:
        stream_line(line)


def _in_place(shown: Any, look: Callable[[], Any], to_lines: Callable[[Any], Iterable[str]]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    lines, trouble = list(to_lines(shown)), ""
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            now = visible(f"klamm: {trouble}") if trouble else time.strftime("%H:%M:%S")
            status = Text.assemble((now, "bold red" if trouble else "dim"), ("   Ctrl-C ends", "dim"))
            screen = Text("\n".join(map(visible, lines)), no_wrap=True, overflow="ellipsis")
            live.update(Text("\n").join([status, screen]), refresh=True)
            time.sleep(REFRESH_EVERY_S)
            try:
                lines, trouble = list(to_lines(look())), ""
            except ToolError as error:
                trouble = str(error)
