"""The addresses of hosts, as connections name their peers."""

import pytest

from klamm.net.addresses import addresses_of


@pytest.mark.parametrize(("host", "addresses"), [("127.0.0.1", ["127.0.0.1"]), ("0:0::1", ["::1"])])
async def test_an_address_is_its_own(host: str, addresses: list[str]) -> None:
    assert await addresses_of(host) == addresses


@pytest.mark.loop("asyncio", "uvloop")
@pytest.mark.parametrize("host", ["a" * 70, "\0", "a..b", "%"])
async def test_what_is_no_host_is_unknown(host: str) -> None:
    with pytest.raises(OSError):
        await addresses_of(host)
