import asyncio
from typing import Any

import pytest

from klamm.base.environment import FileSystem
from klamm.simulation.machine.environment import EPOCH_MS
from klamm.simulation.machine.process import ProcessDead, SimulationFailure
from klamm.simulation.machine.world import World
from support import simulated_toys as toys
from support.simulated_toys import Echo, Recorder, connect, listen


def run(scenario, seed=1):
    world = World(seed)
    return world.run(scenario(world))


def test_a_crash_stops_tasks_timers_and_callbacks_where_they_are():
    happened = []

    async def program():
        loop = asyncio.get_running_loop()
        loop.call_later(10, happened.append, "timer")
        asyncio.create_task(child())  # noqa: RUF006
        try:
            await asyncio.sleep(10)
            happened.append("slept")
        finally:
            happened.append("finally")

    async def child():
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(10)
        happened.append("child")

    async def scenario(world):
        node = world.node("a")
        outcome = node.run(program())
        await asyncio.sleep(5)
        node.crash()
        with pytest.raises(ProcessDead):
            await outcome
        await asyncio.sleep(100)
        assert happened == []
        node.restart()
        await asyncio.sleep(100)
        assert happened == []

    run(scenario)


def test_a_crash_from_within_stops_the_process_at_its_next_step():
    happened = []

    async def program(node):
        node.crash()
        happened.append("this step ends")
        with pytest.raises(ProcessDead):
            node.environment.now_ms()
        with pytest.raises(ProcessDead):
            node.environment.file_system.exists("/")
        try:
            await asyncio.sleep(0)
        finally:
            happened.append("never")

    async def fault(node):
        node.crash()
        raise KeyError("what a process does in its last step is not judged")

    async def scenario(world):
        for work in (program, fault):
            node = world.node(work.__name__)
            with pytest.raises(ProcessDead):
                await node.run(work(node))
        await asyncio.sleep(1)
        assert happened == ["this step ends"]

    run(scenario)


def test_a_fault_of_a_program_fails_the_run_unless_somebody_awaits_it():
    async def fault():
        await asyncio.sleep(1)
        raise KeyError("mine")

    async def awaited(world):
        with pytest.raises(KeyError):
            await world.node("a").run(fault())

    async def ignored(world):
        world.node("a").run(fault())
        await asyncio.sleep(10)

    run(awaited)
    with pytest.raises(SimulationFailure, match="never retrieved"):
        run(ignored)


def test_a_cancelled_program():
    async def program():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async def scenario(world):
        with pytest.raises(asyncio.CancelledError):
            await world.node("a").run(program())

    run(scenario)


@pytest.mark.parametrize("machine", [False, True])
def test_the_peers_of_a_dead_process_hear_of_it(machine):
    async def scenario(world):
        a = world.node("a")
        await a.run(listen(Echo))
        client = await connect("a")
        a.crash(machine=machine)
        died = asyncio.get_running_loop().time()
        await client.until(lambda: client.lost)
        noticed_s = asyncio.get_running_loop().time() - died
        assert (noticed_s > 0.1) == machine
        if not machine:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.get_running_loop().create_connection(Recorder, "a", toys.PORT)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.get_running_loop().create_connection(Recorder, "a", toys.PORT)
        a.restart()
        await a.run(listen(Echo))
        again = await connect("a")
        again.transport.write(b"hello")
        await again.until(lambda: again.received == b"hello")

    run(scenario)


def test_what_was_under_way_when_a_process_died_may_still_arrive():
    async def scenario(world):
        a = world.node("a")
        servers = []
        await a.run(listen(lambda: servers.append(Recorder()) or servers[-1]))
        client = await connect("a")

        async def write():
            for _ in range(4):
                servers[0].transport.write(b"x")
            a.crash()
            servers[0].transport.write(b"never")

        a.run(write())
        await client.until(lambda: client.lost)
        return bytes(client.received)

    assert {run(scenario, seed) for seed in range(60)} == {b"", b"x", b"xx", b"xxx", b"xxxx"}


def test_the_environment():
    async def scenario(world):
        a = world.node("a")
        environment = a.environment
        assert environment.host_name() == "a"
        assert environment.now_ms() == EPOCH_MS
        await asyncio.sleep(1.5)
        assert environment.now_ms() == EPOCH_MS + 1500
        assert isinstance(environment.file_system, FileSystem)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await a.run(environment.run_blocking(divmod, 7, 2)) == (3, 1)
        assert loop.time() > began
        with pytest.raises(ZeroDivisionError):
            await a.run(environment.run_blocking(divmod, 7, 0))
        return environment.random.random(), environment.random_uuid()

    assert run(scenario) == run(scenario)
    assert run(scenario, 1) != run(scenario, 2)


def test_chance_differs_between_nodes_and_lives():
    async def scenario(world):
        a, b = world.node("a"), world.node("b")
        drawn = [a.environment.random.random(), b.environment.random.random()]
        a.crash()
        a.restart()
        return [*drawn, a.environment.random.random()]

    assert len(set(run(scenario))) == 3


def test_cancelled_blocking_work_may_still_happen():
    async def scenario(world):
        happened = []
        environment = world.node("a").environment

        async def work():
            try:
                async with asyncio.timeout(0):
                    await environment.run_blocking(happened.append, 1)
            except TimeoutError:
                await asyncio.sleep(1)

        await world.node("a").run(work())
        return len(happened)

    assert {run(scenario, seed) for seed in range(20)} == {0, 1}


def test_blocking_work_of_a_dead_process_is_not_done():
    async def scenario(world):
        happened = []
        a = world.node("a")
        a.run(a.environment.run_blocking(happened.append, 1))
        await asyncio.sleep(0)
        a.crash()
        await asyncio.sleep(1)
        assert happened == []

    run(scenario)


@pytest.mark.parametrize("machine", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_durable_counter_never_forgets(machine, seed):
    world = World(seed)
    world.run(toys.counter_scenario(world, machine=machine))


def test_a_counter_that_does_not_sync_forgets(monkeypatch):
    monkeypatch.setattr("klamm.simulation.machine.disk.SimulatedFileSystem.sync_directory", lambda self, path: None)
    forgot = 0
    for seed in range(20):
        world = World(seed)
        try:
            world.run(toys.counter_scenario(world, machine=True))
        except AssertionError:
            forgot += 1
    assert forgot


def test_a_stalled_process_does_not_run_until_it_is_resumed():
    async def scenario(world):
        happened = []
        a = world.node("a")
        loop = asyncio.get_running_loop()

        async def work():
            loop.call_later(1, happened.append, "early")
            loop.call_later(3, happened.append, "late")
            loop.call_later(2, happened.append, "later")
            loop.call_later(2.5, happened.append, "cancelled").cancel()
            await a.environment.run_blocking(happened.append, "blocking")

        a.run(work())
        await asyncio.sleep(0)
        a.stall()
        await asyncio.sleep(2.2)
        assert happened == []
        a.resume()
        await asyncio.sleep(0.1)
        assert happened == ["blocking", "early", "later"]
        a.stall()
        await asyncio.sleep(5)
        a.resume()
        await asyncio.sleep(0.1)
        assert happened == ["blocking", "early", "later", "late"]

    run(scenario)


def test_the_connections_of_a_stalled_process_stay_open():
    async def scenario(world):
        a = world.node("a")
        servers = []
        await a.run(listen(lambda: servers.append(Echo()) or servers[-1]))
        client = await connect("a")
        a.stall()
        client.transport.write(b"hello")
        other = await connect("a")  # its kernel accepts it
        other.transport.write(b"hi")
        await asyncio.sleep(3600)
        assert not client.lost and not other.lost and not servers[0].received
        a.resume()
        await client.until(lambda: client.received == b"hello")
        await other.until(lambda: other.received == b"hi")

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_the_buffers_of_a_stalled_process_are_bounded(seed):
    async def scenario(world):
        a = world.node("a")
        servers = []
        await a.run(listen(lambda: servers.append(Recorder()) or servers[-1]))
        client = await connect("a")
        await asyncio.sleep(1)
        server = servers[0]

        async def write(size):
            server.transport.write(bytes(size))

        await a.run(write(600_000))
        a.stall()
        transport: Any = server.transport
        in_kernel = transport.outgoing.send_buffer_bytes
        written = 0
        while client.events[-1] != "pause":
            client.transport.write(bytes(5_000))
            written += 5_000
        await asyncio.sleep(60)
        assert client.events[-1] == "pause" and not server.received
        assert len(client.received) <= in_kernel
        a.resume()
        await server.until(lambda: len(server.received) == written)
        await client.until(lambda: len(client.received) == 600_000)

    run(scenario, seed)


def test_a_peer_that_goes_while_a_process_is_stalled():
    async def scenario(world):
        a = world.node("a")
        servers = []
        await a.run(listen(lambda: servers.append(Recorder()) or servers[-1]))
        client = await connect("a")
        a.stall()
        client.transport.write(b"farewell")
        client.transport.close()
        await client.until(lambda: client.lost)
        assert not servers[0].lost
        a.resume()
        await servers[0].until(lambda: servers[0].lost)
        assert servers[0].received == b"farewell"

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_a_stalled_process_can_be_killed(seed):
    async def scenario(world):
        a = world.node("a")
        servers = []
        await a.run(listen(lambda: servers.append(Recorder()) or servers[-1]))
        client = await connect("a")
        await asyncio.sleep(1)

        async def write():
            servers[0].transport.write(bytes(600_000))

        await a.run(write())
        a.stall()
        client.transport.write(b"never")
        await asyncio.sleep(1)
        a.crash()
        await client.until(lambda: client.lost)
        assert not servers[0].received
        a.restart()
        await a.run(listen(Echo))
        await connect("a")

    run(scenario, seed)


def test_stall_and_resume_take_turns():
    async def scenario(world):
        a = world.node("a")
        with pytest.raises(RuntimeError, match="not stalled"):
            a.resume()
        a.stall()
        with pytest.raises(RuntimeError, match="stalled already"):
            a.stall()
        a.crash()
        with pytest.raises(ProcessDead):
            a.resume()

    run(scenario)


def test_a_deadlock_names_who_is_stalled():
    async def scenario(world):
        a = world.node("a")
        waiting = a.run(asyncio.sleep(1))
        await asyncio.sleep(0.5)
        a.stall()
        await waiting

    with pytest.raises(SimulationFailure, match=r"a#1 \(stalled\): Task"):
        run(scenario)


def test_only_the_dead_restart():
    async def scenario(world):
        a = world.node("a")
        with pytest.raises(RuntimeError, match="still alive"):
            a.restart()
        a.crash()
        with pytest.raises(ProcessDead):
            a.crash()
        a.restart()
        assert world.node("a") is a

    run(scenario)


def test_a_clock_is_wrong_by_what_it_was_set_to_and_drifts_from_there() -> None:
    async def scenario() -> tuple[list[int], list[int]]:
        nodes = [world.node("right"), world.node("wrong")]
        nodes[1].clock.set_wrong(-1_500, 0.01)
        before = [node.environment.now_ms() for node in nodes]
        await asyncio.sleep(100)
        return before, [node.environment.now_ms() for node in nodes]

    world = World(1)
    before, after = world.run(scenario())
    assert before[0] - before[1] == 1_500
    assert (after[0] - before[0], after[1] - before[1]) == (100_000, 101_000)
