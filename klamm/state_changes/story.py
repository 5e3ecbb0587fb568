"""One partition's story: its entries as rows of a table. Pure."""

from collections.abc import Iterable, Sequence

from klamm.base.visible import visible
from klamm.state_changes.entries import Said

COLUMNS = ("TIME", "BROKER", "WRITTEN-BY", "LEADER", "EPOCH", "ISR", "STATE", "MESSAGE")


def rows(entries: Iterable[Said]) -> list[tuple[str, ...]]:
    """A row for each entry; "-" where the entry does not say."""
    return [
        (
            said.time,
            _text(said.broker),
            _writer(said),
            _text(said.leader),
            _text(said.leader_epoch),
            _text(None if said.isr is None else ",".join(map(str, said.isr)) or "none"),
            _states(said),
            _message(said),
        )
        for said in entries
    ]


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of the table, with its head."""
    every = [COLUMNS, *([visible(text) for text in line] for line in lines)]
    widths = [max(len(line[column]) for line in every) for column in range(len(COLUMNS))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in every]


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _writer(said: Said) -> str:
    epoch = "" if said.controller_epoch is None else f" epoch {said.controller_epoch}"
    if said.is_controller:
        return f"controller{epoch}"
    return f"broker, for controller{epoch}" if epoch else "broker"


def _states(said: Said) -> str:
    if said.from_state is None:
        return "-"
    whose = "" if said.replica is None or said.from_state.endswith("Partition") else f"replica {said.replica}: "
    return f"{whose}{said.from_state} -> {said.to_state}"


def _message(said: Said) -> str:
    """The first line, without the writer in front."""
    first = said.text.partition("\n")[0]
    return first.partition("] ")[2] if first.startswith("[") else first
