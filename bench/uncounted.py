"""A copy of klamm that does not count, for `bench/metrics.py`: the source, without what counting needs of a produce.

Each replacement must be found exactly once, so that a change of the source is noticed here. What stands in their place
is what would be there if nothing was counted: no clock, no argument, no attribute and no branch. Requests that wait
(acks=all, and most other APIs) are served too, but nothing of theirs is measured, and connections are never idle.
"""

import shutil
from pathlib import Path

_NO_WATCH = '''

class _NoWatch:
    """Stands for every request that would be measured."""

    size_bytes = 0

    def pause(self) -> None:
        pass

    resume = pause

    def measured(self, work: Any) -> Any:
        return work


NO_WATCH = _NoWatch()
'''

_SERVER = (
    (
        "        clock_s: Callable[[], float],\n        received_s: float,\n        memory: Part,",
        "        memory: Part,",
    ),
    (
        "        # Not through `super`, which costs as much again.\n"
        "        self._clock_s = clock_s\n        self.arrived_s = None\n",
        "",
    ),
    ("        self.began_s = received_s\n", ""),
    ("        self.measurements: Any = None  #", "        #"),
    ("        received_s = self._work_clock_s()\n        if self._waiting", "        if self._waiting"),
    ("self._waiting.append((frame, received_s))", "self._waiting.append((frame, 0.0))"),
    ("            self._serve(frame, received_s)\n", "            self._serve(frame)\n"),
    (
        "    def _serve(self, frame: bytearray, received_s: float, *, is_late: bool = False) -> None:",
        "    def _serve(self, frame: bytearray, received_s: float = 0.0, is_late: bool = False) -> None:",
    ),
    ("len(frame), self._work_clock_s, received_s, self._memory_of(frame)", "len(frame), self._memory_of(frame)"),
    ("        if is_late:\n            exchange.starts_late(self._work_clock_s())\n", ""),
    ("        self.exchange = exchange\n", ""),
    (
        "        now_s = self._work_clock_s()\n        exchanges = self._exchanges\n",
        "        exchanges = self._exchanges\n",
    ),
    ("            exchange.waits_for_others(response, now_s)\n", "            exchange.response = response\n"),
    (
        "                self._traffic.bytes_out += len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))\n",
        "",
    ),
    ("                    exchange.has_waited()\n", ""),
    ("            else:\n                self._traffic.unanswered += 1\n", ""),
    ("                exchange.has_waited()\n                self._throttle(", "                self._throttle("),
    (
        """            measurements = exchange.measurements
            if measurements is not None:
                if exchange.arrived_s is None:
                    # Not in a method, which would cost as much again.
                    numbers = measurements.at_once
                    numbers += (exchange.version, exchange.size_bytes, exchange.began_s, now_s)
                    if len(numbers) >= measurements.most_at_once:
                        measurements.take()
                else:
                    self._add_waited(exchange, response, now_s)
""",
        "",
    ),
    ("        self.last_active_s = now_s\n", "        self.last_active_s = asyncio.get_running_loop().time()\n"),
    (
        "            if exchange.measurements is not None:\n                exchange.measurements.forgo()\n"
        "        self._exchanges.clear()",
        "        self._exchanges.clear()",
    ),
    ("                if exchange.measurements is not None:\n                    exchange.measurements.forgo()\n", ""),
    ("        self._traffic.started += self._started\n", ""),
    ("            self._traffic.started += self._started - REQUESTS_PER_SLICE\n", ""),
)
_DISPATCHER = (
    ("from klamm.net.server import", "from klamm.net.stopwatch import NO_WATCH\nfrom klamm.net.server import"),
    (
        "        exchange = connection.exchange\n        exchange.measurements = api.statistics\n"
        "        exchange.version = header.api_version\n",
        "        exchange = NO_WATCH\n",
    ),
    ("            exchange,\n        )\n        quotas", "        )\n        quotas"),
    ("                exchange.measurements = self.statistics.follower_fetches\n", "                pass\n"),
    ("            codes = request.exchange.measurements.error_codes\n", ""),
    ("correlation_id, result, codes)", "correlation_id, result)"),
    ("        await exchange.measured(in_slices(exchange.measurements.count_errors(result)))\n", ""),
)
REPLACEMENTS = {
    "net/server.py": _SERVER,
    "net/stopwatch.py": (('T = TypeVar("T")\n', 'T = TypeVar("T")\n' + _NO_WATCH),),
    "broker/dispatcher.py": _DISPATCHER,
    "broker/registry.py": (
        ("from typing import Any, Generic, TypeVar", "from typing import Any, ClassVar, Generic, TypeVar"),
        (
            "from klamm.net.server import Exchange, ServerConnection\n",
            "from klamm.net.server import ServerConnection\nfrom klamm.net.stopwatch import NO_WATCH\n",
        ),
        ("    exchange: Exchange\n", "    exchange: ClassVar[Any] = NO_WATCH\n"),
    ),
    "protocol/messages.py": (
        (
            "    if codes is None:\n        codes = []\n    try:\n        body = encode(message, codes)",
            "    try:\n        body = encode(message)",
        ),
        ("        _take_back(encode, message, codes)\n", ""),
        ("    def encode(message: Any, codes: list[int]) ->", "    def encode(message: Any) ->"),
        (
            "        counts: dict[int, int] = {}\n        count_errors(message, counts)\n"
            "        for code, count in counts.items():\n            codes += [code] * count\n",
            "",
        ),
        (
            "compiler.compile_response_encoder(response_class(api_key)",
            "compiler.compile_encoder(response_class(api_key)",
        ),
    ),
    "replication/replica_manager.py": (
        (
            "        counts = target.topic_counts\n        counts.produce_requests += 1\n"
            "        counts.messages_in += end_offset - first_offset\n        counts.bytes_in += len(records)\n"
            "        if is_converted:\n            counts.produce_conversions += end_offset - first_offset\n",
            "",
        ),
        ("log_start_offset, duplicate, _, is_converted = info", "log_start_offset, duplicate, _ = info"),
    ),
    "storage/log.py": (
        ("    # Whether the records were compressed anew.\n    is_converted: bool = False\n", ""),
        ("        is_converted = False\n", ""),
        ("            is_converted = inspected.found.batch is not None\n", ""),
        ("            len(records),\n            is_converted,\n", "            len(records),\n"),
    ),
}


def make(source: Path, directory: Path) -> None:
    """Copies the package in `source` to `directory` and takes counting out. Raises ValueError for a replacement that
    the source does not have, or has more than once."""
    shutil.copytree(source / "klamm", directory / "klamm")
    for name in REPLACEMENTS:
        file = directory / "klamm" / name
        file.write_text(uncounted(file.read_text(encoding="utf-8"), name), encoding="utf-8")


def uncounted(text: str, name: str) -> str:
    """The source of a module without what counting needs."""
    for old, new in REPLACEMENTS[name]:
        if text.count(old) != 1:
            raise ValueError(f"klamm/{name} has {text.count(old)} times, not once:\n{old}")
        text = text.replace(old, new)
    return text
