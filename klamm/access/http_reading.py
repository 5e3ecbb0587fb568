"""Reads what a broker serves over HTTP, on klamm's port (klamm.metrics.port) or on that of another exporter.

Brokers are reached directly, never through an HTTP proxy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from klamm.processes.tool_errors import ToolError, describe_os_error

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from klamm.znodes.brokers import BrokerRegistration

HTTP_TIMEOUT_S = 10.0


class WrongAnswer(ToolError):
    """The program at the port answers with an error, with something other than HTTP, or not as klamm does."""


def http_address(broker: "BrokerRegistration") -> tuple[str, int | None]:
    """The host and port of a broker's HTTP server, by its registration; None if it has no such port.

    A broker of Apache Kafka serves JMX at this port.
    """
    host = next((endpoint.host for endpoint in broker.endpoints if endpoint.host), "")
    return host, broker.jmx_port if broker.jmx_port > 0 else None


def read_lines(url: str, who: str, timeout_s: float = HTTP_TIMEOUT_S) -> Iterator[bytes]:
    """The lines of an answer, as they come.

    Raises ToolError, and WrongAnswer. `who` names the program at `url` in errors. `timeout_s` limits the wait for each
    line.
    """
    with _answer(url, who, timeout_s) as answer:
        yield from answer
        if answer.length:
            raise _torn(who)


def read_body(url: str, who: str, timeout_s: float = HTTP_TIMEOUT_S) -> bytes:
    """The whole body of an answer. Raises like `read_lines`."""
    with _answer(url, who, timeout_s) as answer:
        return answer.read()


@contextmanager
def _answer(url: str, who: str, timeout_s: float) -> Iterator["HTTPResponse"]:
    import http.client
    import urllib.error
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            yield answer
    except http.client.IncompleteRead as error:
        raise _torn(who) from error
    except urllib.error.HTTPError as error:
        raise WrongAnswer(f"{who} answers at {url} with {error.code} {error.reason}") from error
    except http.client.HTTPException as error:
        raise WrongAnswer(f"{who} does not speak HTTP at {url}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        what = describe_os_error(reason) if isinstance(reason, OSError) else str(reason)
        raise ToolError(f"{who} does not answer at {url}: {what}") from error


def _torn(who: str) -> ToolError:
    return ToolError(f"{who} has stopped in the middle of its answer")
