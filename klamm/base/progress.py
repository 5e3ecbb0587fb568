"""A progress bar on stderr for long work, shown only on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int | None, *, visible: bool = True) -> Iterator[Callable[[int], object]]:
    """Yields a function to be called with each advance. `total` is None when the end is unknown."""
    if not visible or not sys.stderr.isatty():
        yield lambda advance: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda advance: bar.advance(task, advance)
