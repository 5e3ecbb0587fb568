"""`python -m support.mutants`: removes and turns round klamm's guards one at a time, and says what finds it.

    python -m support.mutants                              the sample of the table, on all cores; goes on where it ended
    python -m support.mutants --share 0.5                  half of all mutants instead of a tenth
    python -m support.mutants klamm/replication/partition  only those of these files and folders
    python -m support.mutants --survivors                  what nothing has found so far
    python -m support.mutants --again NAME                 one of them once more

Each mutant meets the tests of its module, then those of its room, then SEEDS random runs of the simulator. The table is
`tests/mutants.jsonl`, one line for each mutant that was hunted: its name, line and text, what has found it, and after
how many seconds. A mutant whose text has changed is hunted again. The exit status is 1 when a mutant has survived.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from queue import Empty

import msgspec

from klamm.base.progress import progress
from support.mutants.hunt import ROOT, Tree
from support.mutants.mutants import Mutant, mutants, sample

ROOMS = ("controller", "replication", "storage", "coordinator", "client", "znodes")
TABLE = ROOT / "tests" / "mutants.jsonl"


class Row(msgspec.Struct):
    """A line of the table."""

    name: str
    line: int
    was: str
    becomes: str
    found_by: str | None
    after_s: float


def rows() -> dict[str, Row]:
    """The table, by names."""
    lines = TABLE.read_bytes().splitlines() if TABLE.exists() else []
    return {row.name: row for row in (msgspec.json.decode(line, type=Row) for line in lines)}


def save(table: dict[str, Row]) -> None:
    lines = b"".join(msgspec.json.encode(table[name]) + b"\n" for name in sorted(table))
    aside = TABLE.with_suffix(".new")
    aside.write_bytes(lines)
    aside.replace(TABLE)


def candidates(paths: Iterable[Path]) -> list[tuple[Path, Mutant]]:
    """All mutants of these files and folders, relative to the tree."""
    files = [
        file for path in paths for file in ([path] if path.suffix == ".py" else sorted((ROOT / path).rglob("*.py")))
    ]
    relative = [(ROOT / file).relative_to(ROOT) for file in files]
    return [(file, mutant) for file in relative for mutant in mutants(str(file), (ROOT / file).read_text())]


def _worker(
    tasks: "multiprocessing.Queue[tuple[Path, Mutant]]", done: "multiprocessing.Queue[Row]", seeds: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="klamm-mutants-") as directory:
        tree = Tree(Path(directory) / "tree")
        while True:
            try:
                file, mutant = tasks.get(timeout=1)
            except Empty:
                return
            found = tree.find(file.parts[1], file, mutant, seeds)
            done.put(Row(mutant.name, mutant.line, mutant.was, mutant.text, found.by, found.after_s))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m support.mutants", description=(__doc__ or "").partition("\n")[0])
    default = [Path("klamm", room) for room in ROOMS]
    parser.add_argument("paths", nargs="*", type=Path, default=default, help="files and folders (default: six rooms)")
    parser.add_argument("--share", type=float, default=0.1, help="of all mutants, from 0 to 1 (default: 0.1)")
    parser.add_argument("--seeds", type=int, default=60, help="runs of the simulator for each survivor (default: 60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="hunts at a time (default: one per core)")
    parser.add_argument("--survivors", action="store_true", help="print what nothing has found, and hunt nothing")
    parser.add_argument("--again", metavar="NAME", action="append", default=[], help="hunt this mutant once more")
    arguments = parser.parse_args()
    for path in arguments.paths:
        if not (ROOT / path).exists() or (ROOT / path).relative_to(ROOT).parts[:1] != ("klamm",):
            parser.error(f"{path}: not a file or folder of klamm/")
    if not 0 < arguments.share <= 1:
        parser.error(f"--share {arguments.share}: more than 0, at most 1")
    return arguments


def main() -> None:
    """See the module."""
    arguments = _arguments()
    table = rows()
    if not arguments.survivors:
        found = candidates(arguments.paths)
        chosen = {mutant.name for mutant in sample((mutant for _, mutant in found), arguments.share)}
        wanted = [
            (file, mutant)
            for file, mutant in found
            if mutant.name in arguments.again
            or (not arguments.again and mutant.name in chosen and not _is_known(table.get(mutant.name), mutant))
        ]
        _hunt(wanted, table, arguments)
    survivors = [row for row in table.values() if row.found_by is None]
    for row in survivors:
        print(f"{row.name} (line {row.line}): {row.was!r} became {row.becomes!r}")
    print(f"{len(table)} mutants, {len(table) - len(survivors)} found, {len(survivors)} survive")
    sys.exit(bool(survivors))


def _is_known(row: Row | None, mutant: Mutant) -> bool:
    return row is not None and (row.was, row.becomes) == (mutant.was, mutant.text)


def _hunt(wanted: list[tuple[Path, Mutant]], table: dict[str, Row], arguments: argparse.Namespace) -> None:
    context = multiprocessing.get_context("spawn")
    tasks: multiprocessing.Queue[tuple[Path, Mutant]] = context.Queue()
    done: multiprocessing.Queue[Row] = context.Queue()
    for each in wanted:
        tasks.put(each)
    workers = [
        context.Process(target=_worker, args=(tasks, done, arguments.seeds), daemon=True)
        for _ in range(min(arguments.jobs, len(wanted)))
    ]
    for worker in workers:
        worker.start()
    with progress("mutants", len(wanted)) as advance:
        for _ in wanted:
            row = done.get()
            table[row.name] = row
            save(table)
            advance(1)


if __name__ == "__main__":
    main()
