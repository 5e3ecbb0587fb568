"""Which quota holds for a client."""

import pytest

from klamm.broker.quotas.bounds import QuotaBounds, QuotaEntity, QuotaTags

# Kafka's order of precedence; the entities are of alice and of her client c.
LEVELS = [
    (QuotaEntity("alice", "c"), QuotaTags("alice", "c")),
    (QuotaEntity("alice", ""), QuotaTags("alice", "c")),
    (QuotaEntity("alice", None), QuotaTags("alice", "")),
    (QuotaEntity("", "c"), QuotaTags("alice", "c")),
    (QuotaEntity("", ""), QuotaTags("alice", "c")),
    (QuotaEntity("", None), QuotaTags("alice", "")),
    (QuotaEntity(None, "c"), QuotaTags("", "c")),
    (QuotaEntity(None, ""), QuotaTags("", "c")),
]


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_entity_decides(first: int) -> None:
    bounds = QuotaBounds(default=1000)
    for level in reversed(range(first, len(LEVELS))):
        bounds.set(LEVELS[level][0], level)
    # Of others, whatever they are.
    for entity in (
        QuotaEntity("bob", "c"),
        QuotaEntity("alice", "d"),
        QuotaEntity("bob", None),
        QuotaEntity(None, "d"),
    ):
        bounds.set(entity, 99)
    assert bounds.of("alice", "c") == (LEVELS[first][1], first)
    for level in range(len(LEVELS)):
        bounds.set(LEVELS[level][0], None)
    assert bounds.of("alice", "c") == (QuotaTags("", "c"), 1000)


@pytest.mark.parametrize(
    ("entity", "user", "client_id", "is_found"),
    [
        (QuotaEntity("alice", "c"), "alice", "d", False),
        (QuotaEntity("alice", "c"), "bob", "c", False),
        (QuotaEntity("alice", ""), "bob", "c", False),
        (QuotaEntity("alice", None), "bob", "c", False),
        (QuotaEntity("", "c"), "bob", "c", True),
        (QuotaEntity("", "c"), "bob", "d", False),
        (QuotaEntity("", ""), "bob", "d", True),
        (QuotaEntity("", None), "bob", "d", True),
        (QuotaEntity(None, "c"), "bob", "d", False),
        (QuotaEntity(None, ""), "bob", "d", True),
        # A client without an id is one of the default clients; Kafka gives it no quota.
        (QuotaEntity("alice", ""), "alice", "", True),
        (QuotaEntity(None, ""), "bob", "", True),
        (QuotaEntity(None, "c"), "bob", "", False),
    ],
)
def test_an_entity_matches_by_name_or_as_the_default(
    entity: QuotaEntity, user: str, client_id: str, is_found: bool
) -> None:
    bounds = QuotaBounds()
    assert not bounds.is_set
    bounds.set(entity, 7)
    assert bounds.is_set
    assert bounds.of(user, client_id).value == (7 if is_found else None)
    bounds.set(entity, None)
    assert not bounds.is_set


def test_a_quota_of_nothing_is_one() -> None:
    bounds = QuotaBounds()
    bounds.set(QuotaEntity(None, ""), 10)
    bounds.set(QuotaEntity(None, "c"), 0)
    assert (bounds.of("u", "c").value, bounds.of("u", "d").value) == (0, 10)
