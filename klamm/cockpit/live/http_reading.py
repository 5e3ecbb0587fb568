"""Reads a klamm broker's HTTP answers without blocking the loop: whole answers, or lines as they come. Commands, which
have no loop, read with klamm.access.http_reading.

What must stay true: the length and time of an answer and the length of a line are bounded. Any program may answer:
brokers of Apache Kafka register their JMX port.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import h11

from klamm.access.http_reading import WrongAnswer
from klamm.processes.tool_errors import ToolError, describe_os_error

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
# A record of klamm's controller has some hundred bytes; a record that lists all brokers has some thousand.
MAX_LINE_BYTES: Final = 128 * 1024
READ_BYTES: Final = 256 * 1024


async def read_answer(host: str, port: int, path: str, timeout_s: float) -> bytes:
    """The body of the answer. Raises ToolError, and WrongAnswer."""
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s), aclosing(_pieces(host, port, path)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise WrongAnswer(f"{host}:{port} answers with more than {MAX_ANSWER_BYTES} bytes")
    except TimeoutError:
        raise ToolError(f"{host}:{port} does not answer within {timeout_s:g} s") from None
    return bytes(body)


async def read_lines(host: str, port: int, path: str, silence_s: float) -> AsyncGenerator[list[bytes], None]:
    """The lines of the answer in batches, as they come. Raises ToolError, also after a silence of `silence_s`."""
    pieces = _pieces(host, port, path)
    rest = b""
    try:
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    piece = await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise ToolError(f"{host}:{port} is silent for {silence_s:g} s") from None
            *lines, rest = (rest + piece).split(b"\n")
            if max(map(len, (rest, *lines))) > MAX_LINE_BYTES:
                raise WrongAnswer(f"{host}:{port} sends a line of more than {MAX_LINE_BYTES} bytes")
            if lines:
                yield lines
    finally:
        await pieces.aclose()


async def _pieces(host: str, port: int, path: str) -> AsyncGenerator[bytes, None]:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise ToolError(f"{host}:{port} cannot be reached: {describe_os_error(error)}") from error
    try:
        name = f"[{host}]" if ":" in host else host
        came = bytearray()
        connection = h11.Connection(h11.CLIENT)
        request = h11.Request(method="GET", target=path, headers=[("Host", f"{name}:{port}"), ("Connection", "close")])
        writer.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if came:
                    # Chunks that arrived together are passed on together.
                    yield bytes(came)
                    came.clear()
                connection.receive_data(await reader.read(READ_BYTES))
            elif isinstance(event, h11.Response) and event.status_code != 200:
                raise WrongAnswer(f"{host}:{port} answers {path} with {event.status_code}")
            elif isinstance(event, h11.Data):
                came += event.data
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                yield bytes(came)
                return
    except h11.ProtocolError as error:
        raise WrongAnswer(f"{host}:{port} does not answer as klamm does: {error}") from error
    except OSError as error:
        raise ToolError(f"{host}:{port}: {describe_os_error(error)}") from error
    finally:
        writer.close()
