"""Servers obey the owner of their cluster: faults are installed, counted and removed; actions are performed."""

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from klamm.faults.agent import MAX_UNREAD_BYTES, Agent
from klamm.faults.commands import Action, FailDisk, Fault, Json, Server, command
from klamm.faults.commands.network import CutLinks
from klamm.faults.control import Control, ServerGone
from klamm.faults.entries import (
    ActionPerformed,
    ControllerElected,
    FaultInstalled,
    FaultRefused,
    FaultRemoved,
    FaultStruck,
)
from klamm.faults.tally import Tally
from klamm.faults.wire import MAX_LINE_BYTES, FaultError


@command("toy.bite")
@dataclass(frozen=True)
class Bite(Fault):
    teeth: int = 32
    server: int | None = None

    def concerns(self, server: Server) -> bool:
        return self.server in (None, server)


@command("toy.bark")
@dataclass(frozen=True)
class Bark(Action):
    word: str


class Dog:
    """A server that does harm when `pass_by` is called."""

    def __init__(self, server: int, directory: Path) -> None:
        self.agent = Agent(server, str(directory))
        self.agent.installs(Bite, self._install)
        self.agent.performs(Bark, self._bark)
        self.bites: dict[Bite, Tally] = {}

    def _install(self, bite: Bite, tally: Tally) -> Callable[[], None]:
        if bite.teeth == 0:
            raise FaultError("a bite needs teeth")
        self.bites[bite] = tally
        return functools.partial(self.bites.__delitem__, bite)

    async def _bark(self, bark: Bark) -> Json:
        match bark.word:
            case "never":
                await asyncio.get_running_loop().create_future()
            case "fault":
                raise AssertionError("a cat")
            case "die":
                await self.agent.close()
        return [bark.word, bark.word]

    def pass_by(self) -> None:
        for bite, tally in self.bites.items():
            tally.asked()
            if bite.teeth > 1:
                tally.struck(leg="left")


@asynccontextmanager
async def owner(directory: Path) -> AsyncIterator[Control]:
    control = Control(directory, lambda: 0)
    await control.open()
    try:
        yield control
    finally:
        await control.close()


@asynccontextmanager
async def dogs(directory: Path, count: int) -> AsyncIterator[tuple[Control, list[Dog]]]:
    async with owner(directory) as control:
        pack = [Dog(number, directory) for number in range(count)]
        for dog in pack:
            await dog.agent.connect()
        try:
            yield control, pack
        finally:
            for dog in pack:
                await dog.agent.close()


async def test_a_fault_holds_in_every_server_until_it_is_removed(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, pack):
        number = await control.install(Bite())
        assert [list(dog.bites) for dog in pack] == [[Bite()], [Bite()]]
        await control.remove(number)
        assert [list(dog.bites) for dog in pack] == [[], []]
        assert control.active == []


async def test_a_fault_is_installed_only_where_it_concerns_a_server(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, pack):
        await control.install(Bite(server=1))
        assert [list(dog.bites) for dog in pack] == [[], [Bite(server=1)]]


async def test_a_server_that_starts_later_has_the_active_faults_before_it_begins(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, _):
        await control.install(Bite(teeth=1))
        await control.remove(await control.install(Bite(teeth=2)))
        await control.set_addresses([(0, "127.0.0.1", 9092)])
        late = Dog(7, tmp_path / "faults")
        await late.agent.connect()
        assert list(late.bites) == [Bite(teeth=1)]
        assert late.agent.addresses == {("127.0.0.1", 9092): 0}
        await late.agent.close()


async def test_the_counts_of_all_servers_are_added_and_outlive_a_server(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, pack):
        number = await control.install(Bite())
        tame = await control.install(Bite(teeth=1))
        for dog in (pack[0], pack[0], pack[1]):
            dog.pass_by()
        await control.count()
        assert (control.faults[number].calls, control.faults[number].hits) == (3, 3)
        assert (control.faults[tame].calls, control.faults[tame].hits) == (3, 0)
        await pack[0].agent.close()
        with pytest.raises(ServerGone):
            while True:  # until the owner has seen the end
                await control.perform(0, Bark("here"))
        again = Dog(0, tmp_path / "faults")
        await again.agent.connect()
        again.pass_by()
        await control.count()
        assert (control.faults[number].calls, control.faults[number].hits) == (4, 4)
        await again.agent.close()


async def test_a_server_that_stops_tells_its_last_counts(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, pack):
        number = await control.install(Bite(teeth=1))
        pack[0].pass_by()
        await pack[0].agent.close()
        with pytest.raises(ServerGone):
            while True:  # until the owner has seen the end
                await control.perform(0, Bark("here"))
        assert (control.faults[number].calls, control.faults[number].hits) == (1, 0)


async def test_an_owner_waits_until_a_fault_has_struck(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, [dog]):
        number = await control.install(Bite())
        waiting = asyncio.ensure_future(control.wait_struck(number, 2, 10))
        dog.pass_by()
        await control.count()
        assert not waiting.done()
        dog.pass_by()
        await waiting
        with pytest.raises(TimeoutError):
            await control.wait_struck(number, 3, 0.01)


async def test_a_fault_takes_the_place_of_another_one(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, [dog]):
        first = await control.install(Bite())
        dog.pass_by()
        second = await control.install(Bite(teeth=3), instead_of=first)
        dog.pass_by()
        await control.count()
        assert list(dog.bites) == [Bite(teeth=3)]
        assert [installed.number for installed in control.active] == [second]
        assert (control.faults[first].hits, control.faults[second].hits) == (1, 1)


async def test_a_fault_that_a_server_refuses_is_installed_nowhere(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, pack):
        with pytest.raises(FaultError, match=r"^broker 0: a bite needs teeth$"):
            await control.install(Bite(teeth=0))
        assert control.active == []
        assert [list(dog.bites) for dog in pack] == [[], []]


async def test_a_fault_of_an_unknown_broker_is_refused(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, _):
        await control.set_addresses([("zookeeper", "127.0.0.1", 1), (0, "127.0.0.1", 2), (3, "127.0.0.1", 3)])
        with pytest.raises(FaultError, match=r"^disk\.fail: broker 7 is not in this cluster; allowed: 0, 3$"):
            await control.install(FailDisk(broker=7))
        with pytest.raises(FaultError, match=r"^network\.cut: broker 7 is not in this cluster; allowed: 0, 3$"):
            await control.install(CutLinks(one=(0,), other=("zookeeper", 7)))
        assert control.active == []
        await control.install(FailDisk(broker=3))  # which does not run


async def test_an_action_is_performed_and_its_errors_are_sentences(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, _):
        assert await control.perform(0, Bark("wau")) == ["wau", "wau"]
        with pytest.raises(FaultError, match=r"^broker 0: a fault of the program: AssertionError\('a cat'\)$"):
            await control.perform(0, Bark("fault"))
        with pytest.raises(ServerGone, match=r"^broker 5 does not run$"):
            await control.perform(5, Bark("wau"))


async def test_the_newest_controller_is_asked_first(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, _):
        for controller in (0, 1):
            control.history.add(ControllerElected(controller, controller_epoch=controller))
            await control.perform(None, Bark("wau"))
        assert [entry.server for entry in control.history.after().of(ActionPerformed)] == [0, 1]


async def test_the_end_of_a_server_ends_the_waits_for_its_answers(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, _):
        waiting = asyncio.ensure_future(control.perform(0, Bark("never")))
        with pytest.raises(ServerGone, match=r"^broker 0 has ended$"):
            await control.perform(0, Bark("die"))
        with pytest.raises(ServerGone, match=r"^broker 0 has ended$"):
            await waiting


async def test_servers_share_their_turns(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, pack):
        await control.install(Bite())
        first, second = (dog.bites[Bite()].turns("calls") for dog in pack)
        assert [first.take(), second.take(), second.take(), first.take()] == [1, 2, 3, 4]


async def test_a_long_directory_has_a_socket_too(tmp_path: Path) -> None:
    async with dogs(tmp_path / ("x" * 200) / "faults", 1) as (control, _):
        assert await control.perform(0, Bark("wau")) == ["wau", "wau"]


async def test_a_fault_for_other_servers_takes_the_place_of_one(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, pack):
        everywhere = await control.install(Bite())
        for dog in pack:
            dog.pass_by()
        await control.install(Bite(server=1), instead_of=everywhere)
        assert [list(dog.bites) for dog in pack] == [[], [Bite(server=1)]]
        assert control.faults[everywhere].hits == 2


async def test_a_fault_that_cannot_take_the_place_of_another_one_ends_both(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, pack):
        former = await control.install(Bite())
        with pytest.raises(FaultError, match="needs teeth"):
            await control.install(Bite(teeth=0, server=1), instead_of=former)
        assert control.active == []
        assert [list(dog.bites) for dog in pack] == [[], []]


async def test_the_history_has_faults_from_their_installation_to_their_end(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, [dog]):
        number = await control.install(Bite())
        dog.pass_by()
        await control.perform(0, Bark("wau"))
        await control.remove(number)
        await control.remove(number)
        assert control.history.after() == [
            FaultInstalled(1, Bite()),
            FaultStruck(1, 0, 1, {"leg": "left"}),
            ActionPerformed(0, Bark("wau"), ["wau", "wau"]),
            FaultRemoved(1, 1, 1),
        ]
        assert control.history.after().script() == [
            "fault_1 = c.faults.install(Bite())",
            "c.faults.perform(0, Bark(word='wau'))",
            "fault_1.remove()",
        ]


async def test_a_server_that_cannot_install_an_active_fault_says_so_in_the_history(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, _):
        await control.install(Bite(server=5))
        stranger = Agent(5, str(tmp_path / "faults"))
        await stranger.connect()
        await control.count()
        assert control.history.after().of(FaultRefused) == [
            FaultRefused(1, 5, "broker 5: this server knows no fault toy.bite")
        ]
        await stranger.close()


async def test_a_thousand_faults_come_and_go(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 2) as (control, pack):
        await asyncio.gather(*(control.install(Bite(teeth=teeth)) for teeth in range(1, 1001)))
        assert [len(dog.bites) for dog in pack] == [1000, 1000]
        for tally in list(pack[0].bites.values())[:20]:
            tally.turns("calls").take()
        late = Dog(2, tmp_path / "faults")
        await late.agent.connect()
        assert len(late.bites) == 1000
        await control.remove_all()
        assert [len(dog.bites) for dog in (*pack, late)] == [0, 0, 0]
        assert sorted(path.name for path in (tmp_path / "faults").iterdir()) == ["control"]
        counts = f"{tmp_path}/faults/"
        assert not [name for name in os.listdir("/proc/self/fd") if _target(name).startswith(counts)]
        await late.agent.close()


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\n",
        b"[]\n",
        b"[" * 100_000 + b"\n",
        b"x" * (MAX_LINE_BYTES + 10),
        b'{"event": "hello"}\n',
        b'{"event": "hello", "server": "everybody"}\n',
        b'{"event": "hello", "server": 9}\n{"event": "struck"}\n',
        b'{"event": "hello", "server": 9}\n{"event": "truncated", "server": 1}\n',
        b'{"event": "hello", "server": 9}\n{"id": [], "result": 1}\n',
        b'{"event": "hello", "server": 9}\n{"id": 99, "result": 1}\n{}\n',
    ],
)
async def test_rubbish_disturbs_no_server(rubbish: bytes, tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, [dog]):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "faults" / "control"))
        writer.write(rubbish)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until it is disconnected
        writer.close()
        await control.install(Bite())
        dog.pass_by()
        await control.count()
        assert control.faults[1].hits == 1


async def test_an_agent_that_gets_rubbish_obeys_no_further(tmp_path: Path) -> None:
    directory = tmp_path / "faults"
    directory.mkdir()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"rubbish\n")

    async with await asyncio.start_unix_server(serve, str(directory / "control")):
        with pytest.raises(FaultError, match="has closed the connection"):
            await Agent(0, str(directory)).connect()


async def test_an_agent_without_an_owner_says_so(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="does not answer"):
        await Agent(0, str(tmp_path)).connect()


async def test_a_second_owner_of_a_directory_is_refused(tmp_path: Path) -> None:
    async with dogs(tmp_path / "faults", 1) as (control, _):
        with pytest.raises(FaultError, match="another cluster runs in"):
            await Control(tmp_path / "faults", lambda: 0).open()
        assert await control.perform(0, Bark("wau")) == ["wau", "wau"]
    async with owner(tmp_path / "faults"):
        pass  # What the first owner left is no obstacle.


async def test_an_owner_that_does_not_read_costs_bounded_memory_and_learns_what_it_missed(tmp_path: Path) -> None:
    directory, lines = tmp_path / "faults", []
    directory.mkdir()
    may_read, has_read = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"id": 1, "command": "begin"}\n')
        await may_read.wait()
        while b"last" not in (line := await reader.readline()):
            lines.append(json.loads(line))
        has_read.set()
        writer.close()

    async with await asyncio.start_unix_server(serve, str(directory / "control"), limit=MAX_LINE_BYTES):
        agent = Agent(0, str(directory))
        await agent.connect()
        for number in range(30_000):
            agent.tell("truncated", topic="t" * 1000, partition=number)
        may_read.set()
        while not any(line.get("event") == "events_missed" for line in lines):
            await asyncio.sleep(0)
            agent.tell("truncated", topic="t", partition=0)
        agent.tell("last")
        await has_read.wait()
        kept = [line["partition"] for line in lines if line.get("topic") == "t" * 1000]
        assert kept == list(range(len(kept)))
        [missed] = [line["count"] for line in lines if line.get("event") == "events_missed"]
        assert missed >= 30_000 - len(kept)
        assert len(kept) * 1000 < MAX_UNREAD_BYTES + 2_000_000
        await agent.close()
