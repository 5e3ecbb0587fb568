"""Which names of Host headers are a server's own."""

import pytest

from klamm.net.host_names import OwnNames

OWN = OwnNames("192.0.2.7", lambda: ["Broker0.example", "192.0.2.7", ""], setting="some.key")
OWN.of_machine = frozenset(("kafka-0.kafka.shop.svc.cluster.local",))


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9404",
        "127.0.0.1",
        "127.9.9.9:1",
        "[::1]:9404",
        "broker0.example",
        "BROKER0.EXAMPLE.:9404",
        "broker0",
        "kafka-0.kafka.shop.svc.cluster.local:9404",
        "kafka-0.kafka.shop",
        "kafka-0",
        # Addresses that a router or a container's host has translated.
        "192.0.2.7:9404",
        "10.244.1.17:9404",
        "[2001:db8::7]:9404",
        "[fe80::1%eth0]:9404",
    ],
)
def test_a_server_answers_to_its_addresses_and_to_the_names_of_its_machine(host: str) -> None:
    assert OWN.has(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        " ",
        ":9404",
        "site.example",
        "localhost.site.example",
        "broker0.example.site.example",
        "192.0.2.7.site.example",
        "roker0.example",
        "example",
        "kafka",
        "localhost@site.example",
        "site.example@localhost",
        "site.example/localhost",
        "site.example#localhost",
        "site.example localhost",
        "localhost, site.example",
        "[::1",
        "[::1].site.example",
        "localhost:80:80",
        "localhost:x",
    ],
)
def test_a_server_does_not_answer_to_other_names(host: str) -> None:
    assert not OWN.has(host)


def test_a_server_of_the_loopback_interface_is_not_asked_by_other_addresses() -> None:
    for listens_on in ("127.0.0.1", "localhost", "::1"):
        own = OwnNames(listens_on)
        assert own.has("localhost") and own.has("127.0.0.1:1") and own.has("[::1]")
        assert not own.has("192.0.2.7") and not own.has("[2001:db8::7]")


def test_names_are_added_while_the_server_runs() -> None:
    names: list[str] = []
    own = OwnNames("", lambda: names, setting="some.key")
    assert not own.has("metrics.example")
    assert own.why_not("metrics.example") == (
        "this server does not answer to the name 'metrics.example'; some.key adds names"
    )
    names.append("metrics.example")
    assert own.has("metrics.example:80")
    names.append("*")
    assert own.has("any.example")
    assert not own.has("no host")
