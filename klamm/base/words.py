"""The form in which all commands print numbers, sizes, times, tables and broker names. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from klamm.base.visible import visible


def counted(count: int, one: str, several: str | None = None) -> str:
    """ "1 partition", "2 partitions"."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def have(count: int) -> str:
    return "has" if count == 1 else "have"


def do(count: int) -> str:
    return "does" if count == 1 else "do"


def brokers_text(broker_ids: Iterable[int]) -> str:
    """ "broker 1", "brokers 1, 2"."""
    ids = list(broker_ids)
    return f"broker{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"


def size_text(size_bytes: int) -> str:
    """A size for people: 1536 is 1.5 KB."""
    size, unit = float(size_bytes), "B"
    for larger in ("KB", "MB", "GB", "TB", "PB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def duration_text(seconds: float) -> str:
    """1:02:03 for hours, minutes and seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def table_lines(rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> Iterator[str]:
    """Columns as wide as their visible cells. Text is aligned left; the columns in `numbers` are aligned right."""
    to_the_right = set(numbers)
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if column in to_the_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
