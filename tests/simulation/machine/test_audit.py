import os
import socket
import subprocess
import tempfile
import threading
import types
from pathlib import Path

import pytest

from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World

FORBIDDEN = {
    "open": lambda: open(os.devnull).close(),
    "path": lambda: Path("/etc/hostname").read_text(),
    "list": lambda: os.listdir("/"),
    "rename": lambda: os.rename("/nonexistent", "/nonexistent/x"),
    "socket": socket.socket,
    "resolve": lambda: socket.getaddrinfo("localhost", 1),
    "thread": lambda: threading.Thread(target=print).start(),
    "process": lambda: subprocess.run(["true"], check=True),
    "temporary": tempfile.mkdtemp,
}


def called_from(module_name, call):
    """Calls `call` from a function of a module of that name."""
    module = types.ModuleType(module_name)
    exec("def run(call):\n    return call()", module.__dict__)
    return module.run(call)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_production_code_may_not_leave_the_simulation(name):
    async def scenario():
        called_from("klamm.broker.example", FORBIDDEN[name])

    with pytest.raises(SimulationFailure, match="leaves the simulation"):
        World(1).run(scenario())


def test_hiding_it_does_not_help():
    async def scenario():
        try:
            called_from("klamm.broker.example", FORBIDDEN["open"])
        except Exception:
            return

    with pytest.raises(SimulationFailure, match="leaves the simulation: open"):
        World(1).run(scenario())


def test_another_thread_may():
    """A real cluster of an earlier test lives on in a thread of its own."""
    began, ended = threading.Event(), threading.Event()

    def leave():
        began.wait()
        called_from("klamm.broker.example", FORBIDDEN["open"])
        ended.set()

    thread = threading.Thread(target=leave)
    thread.start()

    async def scenario():
        began.set()
        assert ended.wait(30)

    World(1).run(scenario())
    thread.join()


def test_tests_and_the_simulator_may():
    async def scenario():
        called_from("tests.example", lambda: open(os.devnull).close())
        called_from("klamm.simulation.example", lambda: open(os.devnull).close())

    World(1).run(scenario())


def test_loading_modules_is_allowed():
    async def scenario():
        called_from("klamm.broker.example", lambda: __import__("wave"))
        called_from("klamm.broker.example", lambda: __import__("linecache").getlines(__file__))

    World(1).run(scenario())


def test_outside_a_world_everything_is_allowed():
    called_from("klamm.broker.example", lambda: open(os.devnull).close())


def test_one_world_at_a_time():
    async def inner():
        pass

    async def scenario():
        coroutine = inner()
        with pytest.raises(RuntimeError, match="one world"):
            World(2).run(coroutine)
        coroutine.close()

    World(1).run(scenario())
