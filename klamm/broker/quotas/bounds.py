"""Finds the quota that holds for a client. Pure.

A quota is set for an entity: a user, a client id, or both, each by its name or as the default. The most specific entity
that matches a client decides, in this order. Clients of the same entity may share its quota:

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
    """A user, a client, or a client of a user. A name is `DEFAULT` for the default; a missing part is None."""

    user: str | None
    client_id: str | None


class QuotaTags(NamedTuple):
    """The user and client id that share a quota, as in Kafka's metrics; a part that does not matter is empty."""

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
        self._bounds: dict[tuple[str | None, str | None], float] = {}

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
        # Plain tuples, which are equal to entities: creating entities would take most of the time here.
        for entity, of_user, of_client in (
            ((user, client_id), user, client_id),
            ((user, DEFAULT), user, client_id),
            ((user, None), user, ""),
            ((DEFAULT, client_id), user, client_id),
            ((DEFAULT, DEFAULT), user, client_id),
            ((DEFAULT, None), user, ""),
            ((None, client_id), "", client_id),
            ((None, DEFAULT), "", client_id),
        ):
            value = bounds.get(entity)
            if value is not None:
                return Bound(QuotaTags(of_user, of_client), value)
        return Bound(QuotaTags("", client_id), self._default)
