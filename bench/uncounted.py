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

_EXCHANGE = (
    (
        "        # Does not call `super().__init__`, which costs as much again. All readings are of the server's"
        " `work_clock_s`.\n"
        "        self.began_s = began_s\n",
        "",
    ),
    ("size_bytes: int, began_s: float, memory: Part", "size_bytes: int, memory: Part"),
    ("        self.at_once: Measurements | None = UNMEASURED\n", ""),
)
_CONNECTION = (
    ("self._waiting.append((frame, self._work_clock_s()))", "self._waiting.append((frame, 0.0))"),
    ("        if arrived_s is not None:\n            exchange.started_late(arrived_s)\n", ""),
    (
        "        # Read apart from the call: in `self._work_clock_s()` Python would look for a method of this name"
        " first.\n"
        "        clock_s = self._work_clock_s\n        exchange = Exchange(len(frame), clock_s(), self",
        "        exchange = Exchange(len(frame), self",
    ),
    ("self._server.dispatch(self, frame, exchange)", "self._server.dispatch(self, frame)"),
    (
        "        clock_s = self._work_clock_s\n        now_s = clock_s()\n        exchanges = self._exchanges\n",
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
        """            numbers = exchange.at_once
            if numbers is None:
                self._add_waited(exchange, response, now_s)
            else:
                # Inline, because a method call would cost as much again.
                numbers += (exchange.size_bytes, exchange.began_s, now_s)
                if len(numbers) >= _FULL_AT_ONCE:
                    numbers.take()
""",
        "",
    ),
    ("        self.last_active_s = now_s\n", "        self.last_active_s = asyncio.get_running_loop().time()\n"),
    ("            exchange.forgo()\n        self._exchanges.clear()", "        self._exchanges.clear()"),
    ("                exchange.forgo()\n                return\n", "                return\n"),
    ("        self._traffic.started += self._started\n", ""),
    ("            self._traffic.started += self._started - REQUESTS_PER_SLICE\n", ""),
)
_DISPATCHER = (
    (
        "from klamm.net.server.exchange import",
        "from klamm.net.stopwatch import NO_WATCH\nfrom klamm.net.server.exchange import",
    ),
    (
        "        self, connection: ServerConnection, frame: bytearray, exchange: Exchange\n",
        "        self, connection: ServerConnection, frame: bytearray, exchange: Any = NO_WATCH\n",
    ),
    ("        exchange.at_once = api.measurements[header.api_version]\n", ""),
    (
        '            raise InvalidRequest(f"{api.key.name} v{header.api_version}: {error}") from None\n'
        "        return self._handle(connection, api, header, body, exchange)\n",
        '            raise InvalidRequest(f"{api.key.name} v{header.api_version}: {error}") from None\n'
        "        return self._handle(connection, api, header, body)\n",
    ),
    (
        "        body: Any,\n        exchange: Exchange,\n    ) -> Answer | Awaitable[Answer]:\n"
        '        """The stopwatch of the exchange runs."""\n',
        "        body: Any,\n        exchange: Any = NO_WATCH,\n    ) -> Answer | Awaitable[Answer]:\n",
    ),
    (
        "                exchange.is_measured_by(self.statistics.follower_fetches.of_version[header.api_version])\n",
        "                pass\n",
    ),
    (
        "        return self._answer(request, result, exchange)\n\n    async def _finish(",
        "        return self._answer(request, result)\n\n    async def _finish(",
    ),
    (
        "    def _answer(self, request: Request[Any], result: Any, exchange: Exchange) -> Answer:",
        "    def _answer(self, request: Request[Any], result: Any, exchange: Any = NO_WATCH) -> Answer:",
    ),
    ("correlation_id, result, request.api.error_codes)", "correlation_id, result)"),
    ("        await exchange.measured(in_slices(request.api.statistics.count_errors(result)))\n", ""),
)
REPLACEMENTS = {
    "net/server/exchange.py": _EXCHANGE,
    "net/server/server_connection.py": _CONNECTION,
    "net/stopwatch.py": (('T = TypeVar("T")\n', 'T = TypeVar("T")\n' + _NO_WATCH),),
    "broker/requests/dispatcher.py": _DISPATCHER,
    "protocol/messages.py": (
        (
            "    if codes is None:\n        codes = []\n    try:\n        body = encode(message, codes)",
            "    try:\n        body = encode(message)",
        ),
        ("        _take_back(encode, message, codes)\n", ""),
        (
            "encoders.compile_response_encoder(*_served(response_class",
            "encoders.compile_encoder(*_served(response_class",
        ),
    ),
    "replication/replica_manager.py": (
        (
            "        counts = target.topic_counts\n        counts.produce_requests += 1\n"
            "        counts.messages_in += end_offset - first_offset\n        counts.bytes_in += size_bytes\n",
            "",
        ),
    ),
    "storage/log/log.py": (
        (
            "            Oddity.CONVERTED if is_converted else None,\n            len(records),\n",
            "            None,\n            len(records),\n",
        ),
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
