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
import os
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import msgspec

from klamm.base.progress import progress
from support.arguments import positive
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m support.mutants", description=(__doc__ or "").partition("\n")[0])
    default = [Path("klamm", room) for room in ROOMS]
    parser.add_argument("paths", nargs="*", type=Path, default=default, help="files and folders (default: six rooms)")
    parser.add_argument("--share", type=float, default=0.1, help="of all mutants, from 0 to 1 (default: 0.1)")
    parser.add_argument("--seeds", type=positive, default=60, help="runs for each survivor (default: 60)")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="at a time (default: one per core)")
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
    trees: SimpleQueue[Tree] = SimpleQueue()

    def find(file: Path, mutant: Mutant) -> Row:
        tree = trees.get()
        try:
            found = tree.find(file, mutant, arguments.seeds)
        finally:
            trees.put(tree)
        return Row(mutant.name, mutant.line, mutant.was, mutant.text, found.by, found.after_s)

    with (
        tempfile.TemporaryDirectory(prefix="klamm-mutants-") as directory,
        # Each hunt waits for other processes.
        ThreadPoolExecutor(arguments.jobs) as pool,
        progress("mutants", len(wanted)) as advance,
    ):
        for number in range(arguments.jobs):
            trees.put(Tree(Path(directory, str(number))))
        hunts = [pool.submit(find, *each) for each in wanted]
        try:
            for hunt in as_completed(hunts):
                row = hunt.result()
                table[row.name] = row
                save(table)
                advance(1)
        finally:
            pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
