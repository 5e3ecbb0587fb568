"""The budget for responses: shares, what clients have not taken, followers first, and clients that stand still."""

import asyncio

import pytest

from klamm.net.server.response_memory import Receiver, ResponseMemory

pytestmark = pytest.mark.loop("virtual")

MB = 1024 * 1024


class Client(Receiver):
    """A connection whose client has left this much."""

    unsent_bytes = 0

    def __init__(self, unsent_bytes: int) -> None:
        self.unsent_bytes = unsent_bytes
        self.reasons: list[str] = []

    def disconnect(self, reason: str) -> None:
        self.reasons.append(reason)


async def leave_untaken(memory: ResponseMemory, size_bytes: int | None = None) -> Client:
    """A consumer that gets its share, or this much, and takes nothing of it."""
    size_bytes = await memory.share(is_follower=False) if size_bytes is None else size_bytes
    with memory.reading(size_bytes):
        pass
    client = Client(size_bytes)
    memory.untaken(client, size_bytes)
    return client


async def test_each_client_that_does_not_read_leaves_something_for_the_next_one() -> None:
    memory = ResponseMemory(128 * MB)
    clients = [await leave_untaken(memory) for _ in range(30)]
    sizes = [client.unsent_bytes for client in clients]
    # No share is larger than 8 MB, or than an eighth of what is left of the consumers' three quarters.
    assert sizes[:5] == [8 * MB, 8 * MB, 8 * MB, 8 * MB, 8 * MB]
    assert sizes[5:7] == [7 * MB, 56 * MB * 7 // 8 // 8]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] > 250_000
    assert memory.held_bytes == sum(sizes) < 96 * MB
    # A follower has its quarter, whatever consumers do.
    assert await memory.share(is_follower=True) > 4 * MB
    for client in clients:
        memory.taken(client)
    assert memory.held_bytes == 0


async def test_what_is_read_counts_until_the_read_ends_however_it_does() -> None:
    memory = ResponseMemory(64 * MB)
    for error in (None, ValueError(), asyncio.CancelledError()):
        try:
            with memory.reading(5 * MB):
                assert memory.held_bytes == 5 * MB
                if error is not None:
                    raise error
        except (ValueError, asyncio.CancelledError):
            pass
        assert memory.held_bytes == 0
    client = await leave_untaken(memory, MB)
    memory.untaken(client, 2 * MB)
    assert memory.held_bytes == 3 * MB
    # The last byte is taken, and then the connection ends.
    memory.taken(client)
    memory.taken(client)
    assert memory.held_bytes == 0


async def test_consumers_wait_in_their_order_while_there_is_no_room_and_followers_do_not() -> None:
    memory = ResponseMemory(8 * MB)
    hoarder = await leave_untaken(memory, 6 * MB)
    order: list[int] = []

    async def fetch(number: int) -> None:
        assert await memory.share(is_follower=False) > 0
        order.append(number)

    fetches = [asyncio.ensure_future(fetch(number)) for number in range(3)]
    gone = asyncio.ensure_future(fetch(3))
    await asyncio.sleep(0.1)
    gone.cancel()
    assert await memory.share(is_follower=True) == 2 * MB // 8
    await asyncio.sleep(0.1)
    assert order == []
    memory.taken(hoarder)
    await asyncio.gather(*fetches)
    assert order == [0, 1, 2]
    assert memory.held_bytes == 0


async def test_a_consumer_gets_nothing_for_half_a_second_rather_than_too_much() -> None:
    memory = ResponseMemory(8 * MB)
    # Slow, but never still.
    slow = await leave_untaken(memory, 6 * MB)
    loop = asyncio.get_running_loop()
    for _ in range(20):
        began_s = loop.time()
        assert await memory.share(is_follower=False) == 0
        assert 0.5 <= loop.time() - began_s < 0.6
        slow.unsent_bytes -= 1000
    assert slow.reasons == []


async def test_a_client_that_crawls_gives_way_to_others_when_it_would_give_up_by_itself() -> None:
    memory = ResponseMemory(8 * MB)
    crawling = await leave_untaken(memory, 6 * MB)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while await memory.share(is_follower=False) == 0 and loop.time() < began_s + 60:
        crawling.unsent_bytes -= 1
    # request.timeout.ms
    assert 30 <= loop.time() - began_s < 31
    assert len(crawling.reasons) == 1
    assert memory.held_bytes == 0


async def test_what_has_been_read_counts_until_it_is_handed_over_or_the_client_has_gone() -> None:
    memory = ResponseMemory(64 * MB)
    client, other = Client(3 * MB), Client(0)
    memory.read(client, 3 * MB)
    memory.read(other, MB)
    assert memory.held_bytes == 4 * MB
    memory.untaken(client, 3 * MB)
    memory.handed_over(client)
    memory.handed_over(client)
    memory.gone(other)
    assert memory.held_bytes == 3 * MB
    memory.gone(client)
    assert memory.held_bytes == 0


async def test_whoever_has_stood_still_longest_is_disconnected_when_there_is_no_room() -> None:
    memory = ResponseMemory(8 * MB)
    first = await leave_untaken(memory, 3 * MB)
    await asyncio.sleep(60)
    assert first.reasons == []
    second = await leave_untaken(memory, 2 * MB)
    await asyncio.sleep(1)
    third = await leave_untaken(memory, 2 * MB)
    await asyncio.sleep(0.1)
    assert [bool(client.reasons) for client in (first, second, third)] == [True, False, False]
    assert "klamm.queued.max.response.bytes=8388608 is used up" in first.reasons[0]
    assert memory.held_bytes == 4 * MB
    await leave_untaken(memory, 2 * MB)
    # Nobody waits for room, and it is found all the same: the broker holds more than it may.
    await asyncio.sleep(3)
    assert (bool(second.reasons), bool(third.reasons)) == (True, False)
    assert memory.held_bytes == 4 * MB
