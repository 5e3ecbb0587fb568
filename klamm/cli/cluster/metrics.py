"""`klamm metrics`: the metrics that matter most, of all brokers on one screen.

klamm's brokers serve metrics on their HTTP port, which their registration in ZooKeeper names. Brokers of Apache Kafka
need a JMX exporter, whose URL only the user knows (`--url`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.access.http_reading import WrongAnswer, http_address, read_body
from klamm.access.zookeeper import run_with_zookeeper
from klamm.base.words import address_text
from klamm.cli.cluster import metric_views as views
from klamm.cli.cluster.controller import ControllerOptions
from klamm.cli.cluster.live import watch as watch_live
from klamm.processes.tool_errors import EXIT_FAILED, ToolError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from klamm.znodes.store import KafkaZooKeeper

# The time between the two scrapes from which rates are computed. A live view has an interval of its own.
LOOK_FOR_S: Final = 1.0
MOST_READERS: Final = 16


def metrics(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Show these metrics instead; * stands for any text."),
    ] = None,
    *,
    cluster: ControllerOptions,
    broker: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="The broker's id; may be repeated. Default: all.")
    ] = None,
    url: Annotated[
        list[str] | None, typer.Option(help="Read metrics here, from a JMX exporter for example; may be repeated.")
    ] = None,
    watch: Annotated[bool, typer.Option(help="Refresh the screen until Ctrl-C.")] = False,
) -> None:
    """Show traffic, requests, replication, loop lag and memory of brokers, or the metrics with these names.

    Rates are measured over about one second. Exits with 1 when the metrics of a broker could not be read.
    """
    if url and broker:
        raise typer.BadParameter("--url names what to read, so --broker cannot be used with it")
    connect = None if url else cluster.zookeeper_address()
    names = name or []
    with _readers() as readers:
        looks = Looks(readers, connect, url or [], broker or [], names)
        looks.look()
        time.sleep(LOOK_FOR_S)
        if watch:
            watch_live(looks.look, partial(_lines, names), as_json=cluster.as_json)
        found = looks.look()
    cluster.show(found, _lines(names, found))
    if missing := _missing(names, found):
        raise ToolError(_none_shows(missing))
    if any(each["error"] is not None for each in found):
        raise typer.Exit(EXIT_FAILED)


def _lines(names: Sequence[str], brokers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return views.named_lines(brokers) if names else views.screen_lines(brokers)


def _missing(names: Sequence[str], brokers: Sequence[Mapping[str, Any]]) -> list[str]:
    """An error line for the names that no metric has."""
    shown = {metric["name"] for broker in brokers for metric in broker.get("metrics", ())}
    return [name for name in names if not any(views.is_named(each, [name]) for each in shown)]


def _none_shows(names: Sequence[str]) -> str:
    return f"no broker shows a metric with the name {' or '.join(names)}"


@contextmanager
def _readers() -> Iterator["Executor"]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(MOST_READERS, "klamm-metrics") as readers:
        yield readers


class Looks:
    """Reads the metrics of brokers repeatedly. A rate is computed since the previous look.

    `connect` is ZooKeeper's connect string, or None when `urls` are given. `chosen` are broker ids; empty means all
    brokers. `names` are names of metrics; empty means the important ones.
    """

    def __init__(
        self, readers: "Executor", connect: str | None, urls: Sequence[str], chosen: Sequence[int], names: Sequence[str]
    ) -> None:
        self._readers = readers
        self._connect = connect
        self._urls = urls
        self._chosen = chosen
        self._names = names
        self._before: dict[str, views.Scrape] = {}

    def look(self) -> list[dict[str, Any]]:
        """The values of each broker. Raises ToolError if the brokers cannot be found, or show none of the metrics."""
        places = self._places()
        if self._names:
            found = [views.named_value(each) for each in self._readers.map(self._read, places)]
            if not any(each["error"] is not None or each["metrics"] for each in found):
                raise ToolError(_none_shows(self._names))
            return found
        return [views.broker_value(each) for each in self._readers.map(self._read, places)]

    def _places(self) -> list[tuple[int | None, str | None]]:
        """The id and the URL of the metrics of each broker, as far as they are known."""
        if self._connect is None:
            return [(None, url) for url in self._urls]
        live = run_with_zookeeper(self._connect, _addresses)
        if unknown := [broker_id for broker_id in self._chosen if broker_id not in live]:
            raise ToolError(
                f"broker {', '.join(map(str, unknown))} is not in the cluster; known are {', '.join(map(str, live))}"
            )
        return [(broker_id, url) for broker_id, url in live.items() if not self._chosen or broker_id in self._chosen]

    def _read(self, place: tuple[int | None, str | None]) -> views.BrokerMetrics:
        broker_id, url = place
        if url is None:
            return views.BrokerMetrics(
                broker_id,
                None,
                error=f"broker {broker_id} shows no metrics: its klamm.metrics.port is -1, or it is Apache Kafka, whose"
                " JMX exporter --url names",
            )
        who = "the exporter" if broker_id is None else f"broker {broker_id}"
        try:
            text = read_body(url, who).decode("utf-8", "replace")
            is_wanted = partial(views.is_named, names=self._names) if self._names else views.is_important
            scrape = views.parse(text, time.monotonic(), is_wanted)
            if not scrape.samples and not self._names:
                raise ValueError("it has none of the metrics that this command shows")
        except WrongAnswer as error:
            hint = "" if broker_id is None else "; if the broker is Apache Kafka, name its JMX exporter with --url"
            return views.BrokerMetrics(broker_id, url, error=f"{error}{hint}")
        except ToolError as error:
            return views.BrokerMetrics(broker_id, url, error=str(error))
        except ValueError as error:
            return views.BrokerMetrics(broker_id, url, error=f"{who} answers at {url} with no metrics: {error}")
        before, self._before[url] = self._before.get(url), scrape
        return views.BrokerMetrics(broker_id, url, before, scrape)


async def _addresses(znodes: "KafkaZooKeeper") -> dict[int, str | None]:
    """The URL of the metrics of each live broker, by id; None for one without the port."""
    found = {}
    for broker_id, live in sorted((await znodes.live_brokers()).items()):
        host, port = http_address(live.registration)
        found[broker_id] = None if port is None else f"http://{address_text(host, port)}/metrics"
    return found
