"""Which quota holds for a client. Pure.

A quota is set for an entity: a user, a client id, or both, each by its name or as the default. The most specific entity
that matches a client decides, in this order, and clients for whom the same entity decides may share what is recorded:

| entity                                  | shared by                             |
|-----------------------------------------|---------------------------------------|
| the user with the client id             | connections of that user and client id |
| the user with the default client        | of that user and client id            |
| the user                                | of that user                          |
| the default user with the client id     | of that user and client id            |
| the default user with the default client | of that user and client id            |
| the default user                        | of that user                          |
| the client id                           | of that client id                     |
| the default client                      | of that client id                     |

What must stay true: a client without a client id has the defaults of clients. (Kafka gives it no quota at all.)

Source: kafka.server.ClientQuotaManager.DefaultQuotaCallback.
"""

from typing import Final, NamedTuple

DEFAULT: Final = ""
"""The name of the default user or client."""


class QuotaEntity(NamedTuple):
    """A user, a client, or a client of a user; a name is `DEFAULT` for the default, and None for no such part."""

    user: str | None
    client_id: str | None


class QuotaTags(NamedTuple):
    """Who shares a quota, as Kafka's metrics say it: a name is empty if it does not matter."""

    user: str
    client_id: str


class Bound(NamedTuple):
    """The quota of a client; None is unlimited."""

    tags: QuotaTags
    value: float | None


class QuotaBounds:
    """The quotas of one type. `default` is for all clients by their ids, after all other levels."""

    def __init__(self, default: float | None = None) -> None:
        self._default = default
        self._bounds: dict[QuotaEntity, float] = {}

    @property
    def is_set(self) -> bool:
        """Whether any client may have a quota."""
        return bool(self._bounds) or self._default is not None

    def set(self, entity: QuotaEntity, value: float | None) -> None:
        """Sets the quota of an entity; None removes it."""
        if value is None:
            self._bounds.pop(entity, None)
        else:
            self._bounds[entity] = value

    def of(self, user: str, client_id: str) -> Bound:
        """The quota of a client."""
        bounds = self._bounds
        by_both, by_user, by_client = QuotaTags(user, client_id), QuotaTags(user, ""), QuotaTags("", client_id)
        for entity, tags in (
            (QuotaEntity(user, client_id), by_both),
            (QuotaEntity(user, DEFAULT), by_both),
            (QuotaEntity(user, None), by_user),
            (QuotaEntity(DEFAULT, client_id), by_both),
            (QuotaEntity(DEFAULT, DEFAULT), by_both),
            (QuotaEntity(DEFAULT, None), by_user),
            (QuotaEntity(None, client_id), by_client),
            (QuotaEntity(None, DEFAULT), by_client),
        ):
            value = bounds.get(entity)
            if value is not None:
                return Bound(tags, value)
        return Bound(by_client, self._default)
