"""The output of `klamm up`: lines of JSON, plain lines, or on a terminal lines above a live status.

Events go through `told(event, **details)`; `refresh` is called about once a second with the state of the processes.
The counts of topics and partitions come from the brokers themselves, asked in the background.
"""

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from klamm.base.visible import visible
from klamm.cli.shared.output import print_line, print_lines

ASK_EVERY_S = 2.0
ANSWER_TIMEOUT_MS = 10_000


class TopicCounts:
    """Asks the cluster for its topics from a thread of its own; `latest` is (topics, partitions), None if unknown."""

    def __init__(self, bootstrap: str) -> None:
        self.latest: tuple[int, int] | None = None
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        # A daemon thread: a client that still waits for an answer must not delay the end of the command.
        threading.Thread(target=self._ask, name="klamm-topic-counts", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _ask(self) -> None:
        import asyncio

        from klamm.access.clients import command_options
        from klamm.base.system_environment import SystemEnvironment
        from klamm.client.cluster import make_client
        from klamm.net.client import ClientError
        from klamm.processes.readiness import CLIENT_ID

        options = replace(
            command_options(self._bootstrap, None, default_timeout_ms=ANSWER_TIMEOUT_MS), client_id=CLIENT_ID
        )
        with asyncio.Runner() as runner:
            client = make_client(options, SystemEnvironment().random)
            while not self._ended.is_set():
                try:
                    topics = runner.run(client.refresh_metadata()).topics
                    self.latest = len(topics), sum(len(topic.partitions) for topic in topics.values())
                except ClientError:
                    # Brokers come and go; the next round asks the brokers that run then.
                    self.latest = None
                self._ended.wait(ASK_EVERY_S)
            runner.run(client.close())


class View(ABC):
    """The interface of all views."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._counts: TopicCounts | None = None

    @abstractmethod
    def told(self, event: str, **details: Any) -> None:
        """Shows an event of the cluster."""

    def watching(self, bootstrap: str) -> AbstractContextManager[None]:
        """The context in which `refresh` is called."""
        return self._count_topics(bootstrap)

    @contextmanager
    def _count_topics(self, bootstrap: str) -> Iterator[None]:
        self._counts = TopicCounts(bootstrap)
        try:
            yield
        finally:
            self._counts.close()

    def refresh(self, *, brokers_up: int, brokers_down: Sequence[str]) -> None:
        """Shows the current state of the processes."""
        counts = self._counts.latest if self._counts is not None else None
        self.show(
            {
                "brokers_up": brokers_up,
                "brokers_down": list(brokers_down),
                "topics": counts[0] if counts else None,
                "partitions": counts[1] if counts else None,
            },
            int(time.monotonic() - self._started_at),
        )

    @abstractmethod
    def show(self, status: dict[str, Any], uptime_s: int) -> None: ...


class JsonView(View):
    """Prints one JSON object a line; the status only when it has changed."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, Any] = {}

    def told(self, event: str, **details: Any) -> None:
        print_line(json.dumps({"event": event, **details}), flush=True)

    def show(self, status: dict[str, Any], uptime_s: int) -> None:
        if status["topics"] is not None and status != self._last:
            self._last = status
            self.told("status", **status, uptime_s=uptime_s)


class PlainView(JsonView):
    """Prints the same events as sentences; bad news goes to stderr."""

    def told(self, event: str, **details: Any) -> None:
        print_lines(lines(event, details), file=sys.stderr if event == "died" else sys.stdout, flush=True)


class TerminalView(View):
    """Prints sentences above a live status line."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def told(self, event: str, **details: Any) -> None:
        style = {"died": "bold red", "ready": "bold green"}.get(event)
        self._console.print("\n".join(map(visible, lines(event, details))), style=style, markup=False)

    @contextmanager
    def watching(self, bootstrap: str) -> Iterator[None]:
        with self._count_topics(bootstrap), self._live:
            yield

    def show(self, status: dict[str, Any], uptime_s: int) -> None:
        from rich.text import Text

        style = "red" if status["brokers_down"] else "green"
        self._live.update(
            Text.assemble(("● ", style), sentence("status", {**status, "uptime_s": uptime_s}), "   Ctrl-C stops"),
            refresh=True,
        )


def make_view(as_json: bool) -> View:
    """The view for the command's options and its stdout."""
    if as_json:
        return JsonView()
    return TerminalView() if sys.stdout.isatty() else PlainView()


def lines(event: str, details: dict[str, Any]) -> Iterator[str]:
    """An event as a sentence; after a death also what happens next."""
    yield sentence(event, details)
    if event == "died" and details["restarts"]:
        yield f"Starting {details['name']} again."
    elif event == "died" and details["command"]:
        yield f"To start it again: {details['command']} (`klamm up --restart` does so by itself)"


def sentence(event: str, details: dict[str, Any]) -> str:
    """An event as a sentence."""
    match event:
        case "starting":
            return f"starting {_brokers(details['brokers'])} in {details['directory']}"
        case "zookeeper_ready":
            return f"ZooKeeper is ready at {details['address']} (pid {details['pid']})"
        case "broker_ready":
            metrics = f", metrics at {details['metrics']}" if details["metrics"] else ""
            return f"broker {details['broker_id']} is ready at {details['address']} (pid {details['pid']}){metrics}"
        case "ready":
            return (
                f"clients can connect to {details['bootstrap']}"
                f" (the controller is broker {details['controller']}; after {details['seconds']} s)"
            )
        case "cockpit_ready":
            return f"the cockpit is at {details['url']}"
        case "control_ready":
            return f"klamm faults reaches this cluster at {details['url']}; the token is in {details['file']}"
        case "died":
            return f"{details['name']} HAS DIED: {details['reason']}"
        case "status":
            down = f", down: {', '.join(details['brokers_down'])}" if details["brokers_down"] else ""
            topics = (
                f", {details['topics']} topics with {details['partitions']} partitions"
                if details["topics"] is not None
                else ""
            )
            return f"{_brokers(details['brokers_up'])} up{down}{topics}, for {_duration(details['uptime_s'])}"
        case _:
            return event


def _brokers(count: int) -> str:
    return "1 broker" if count == 1 else f"{count} brokers"


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
