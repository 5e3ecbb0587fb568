"""A live view: a command's output, refreshed until Ctrl-C."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from klamm.processes.errors import ToolError

REFRESH_EVERY_S: Final = 1.0


def watch(look: Callable[[], Any], to_text: Callable[[Any], str], *, as_json: bool) -> None:
    """Shows the result of `look` about once a second: in place on a terminal, elsewhere whenever it has changed.

    With `as_json` each change is one line. An error after the first look is shown, and the next look follows.
    """
    shown = look()
    if not as_json and sys.stdout.isatty():
        _in_place(shown, look, to_text)
        return
    print(json.dumps(shown) if as_json else to_text(shown), flush=True)
    trouble = ""
    while True:
        time.sleep(REFRESH_EVERY_S)
        try:
            now = look()
        except ToolError as error:
            if str(error) != trouble:
                trouble = str(error)
                print(f"klamm: {trouble}; looking again", file=sys.stderr, flush=True)
            continue
        trouble = ""
        if now != shown:
            shown = now
            print(json.dumps(shown) if as_json else to_text(shown), flush=True)


def _in_place(shown: Any, look: Callable[[], Any], to_text: Callable[[Any], str]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    text, trouble = to_text(shown), ""
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            status = Text.assemble(
                (f"klamm: {trouble}" if trouble else time.strftime("%H:%M:%S"), "bold red" if trouble else "dim"),
                ("   Ctrl-C ends", "dim"),
            )
            live.update(Text("\n").join([status, Text(text, no_wrap=True, overflow="ellipsis")]), refresh=True)
            time.sleep(REFRESH_EVERY_S)
            try:
                text, trouble = to_text(look()), ""
            except ToolError as error:
                trouble = str(error)
