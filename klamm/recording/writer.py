"""Writes a recording: entries in the order of time, in blocks, and from time to time a keyframe.

What must stay true:
- Times never go back: a late entry gets the time of the entry before it.
- A keyframe is written only after entries of twice the last keyframe's size, so a large cluster has few keyframes.
- Flushed entries stay readable whatever happens to the writer. Blocks stay within the reader's limits: an entry that is
  too long is replaced by a note.
"""

from collections import Counter
from typing import Any, BinaryIO, Final

from klamm.base import json_bytes
from klamm.recording.blocks import MAX_BLOCK_BYTES, MAX_ENTRIES_BYTES, write_block
from klamm.recording.entries import EntryError, Json
from klamm.recording.state import State

BLOCK_ENTRIES: Final = 4_096
BLOCK_BYTES: Final = 1024 * 1024
KEYFRAME_ENTRIES: Final = 20_000
# The largest znode that ZooKeeper accepts by default. A block has room for such an entry, even if JSON writes each
# character as six bytes.
MAX_ENTRY_CHARACTERS: Final = 1024 * 1024


class RecordingWriter:
    """Writes into `file`, which the caller closes. `about` is a sentence about what is recorded.

    All methods may raise OSError.
    """

    def __init__(self, file: BinaryIO, source: str, about: str, at_ms: int) -> None:
        self.entries = 0
        """The number of entries so far."""
        self.state = State()
        self._file = file
        self._lines: list[bytes] = []
        self._bytes = 0
        self._marks: Counter[str] = Counter()
        self._first = 0
        self._first_ms = self._last_ms = at_ms
        self._keyframe = False
        self._since_keyframe = self._bytes_since_keyframe = self._keyframe_bytes = 0
        self.add({"kind": "recording", "source": source, "text": about}, at_ms)
        self.flush()

    def add(self, entry: Json, at_ms: int, *, is_news: bool = True) -> None:
        """Appends an entry. An invalid entry is kept, together with the error.

        Without `is_news` the entry describes the state before the recording began, and gets no mark.
        """
        at_ms = max(at_ms, self._last_ms)
        if (size := _characters(entry)) > MAX_ENTRY_CHARACTERS:
            text = f"An entry of kind {entry['kind']} was too long: {size} of {MAX_ENTRY_CHARACTERS} characters"
            entry = {"kind": "missed", "text": text}
        if not self._lines:
            self._begin_block(at_ms)
        try:
            mark, text = self.state.apply(entry, at_ms)
        except EntryError as error:
            mark, text = "failure", str(error)
        said: dict[str, Any] = {"at_ms": at_ms}
        if mark and is_news:
            said["mark"] = mark
            self._marks[mark] += 1
        if text and "text" not in entry:
            said["text"] = text
        self._append(json_bytes.encode(said | entry))
        self._last_ms = at_ms
        self.entries += 1
        self._since_keyframe += 1
        if len(self._lines) >= BLOCK_ENTRIES or self._bytes >= BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the entries that were added so far."""
        if not self._lines:
            return
        write_block(
            self._file,
            b"\n".join(self._lines) + b"\n",
            first=self._first,
            count=self.entries - self._first,
            first_ms=self._first_ms,
            last_ms=self._last_ms,
            has_keyframe=self._keyframe,
            marks=self._marks,
        )
        self._lines.clear()
        self._marks = Counter()
        self._bytes = 0

    def _begin_block(self, at_ms: int) -> None:
        self._first, self._first_ms = self.entries, at_ms
        self._keyframe = False
        is_due = self._since_keyframe >= KEYFRAME_ENTRIES and self._bytes_since_keyframe >= 2 * self._keyframe_bytes
        if not is_due:
            return
        keyframe = json_bytes.encode({"kind": "keyframe", "state": self.state.to_json()})
        self._since_keyframe = self._bytes_since_keyframe = 0
        self._keyframe_bytes = len(keyframe)
        if len(keyframe) <= MAX_BLOCK_BYTES - MAX_ENTRIES_BYTES:
            self._keyframe = True
            self._append(keyframe)
            self._bytes = 0  # A large keyframe does not end its block.

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        self._bytes_since_keyframe += len(line)


def _characters(entry: Json) -> int:
    """The approximate length of an entry. A number has at most eleven characters."""
    return sum(
        len(each) if isinstance(each, str) else 11 * len(each) for each in entry.values() if hasattr(each, "__len__")
    )
