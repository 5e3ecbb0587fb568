"""Servers without content, for the tests of processes."""

import asyncio
import os
import signal
from typing import Any

import uvloop

from klamm.processes.tool_errors import ToolError


class Toy:
    """Listens on a port of 127.0.0.1 and answers every line with the same line.

    `crash`: what it does instead of becoming ready. `stops`: how it ends when it is asked to. `fails`: its failure is
    reported as soon as it is ready.
    """

    def __init__(self, port: int = 0, crash: str = "", stops: str = "at once", fails: str = "") -> None:
        self._port, self._crash, self._stops, self._fails = port, crash, stops, fails
        self._server: asyncio.Server | None = None
        self.new_event_loop = uvloop.new_event_loop

    async def start(self) -> dict[str, Any]:
        match self._crash:
            case "error":
                raise ToolError("the toy is broken")
            case "fault":
                raise AssertionError("who wrote this?")
            case "exit":
                print("last words", flush=True)
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        self._server = await asyncio.start_server(self._echo, "127.0.0.1", self._port)
        return {"port": self._server.sockets[0].getsockname()[1], "pid": os.getpid()}

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line == b"die\n":
                os._exit(9)
            writer.write(line)

    async def failed(self) -> BaseException:
        if self._fails:
            return ToolError(self._fails)
        never: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        return await never

    async def stop(self) -> None:
        if self._stops == "never":
            await asyncio.get_running_loop().create_future()
        elif self._stops == "never, and deaf":
            while True:
                signal.pause()
        if self._server is not None:
            self._server.close()
