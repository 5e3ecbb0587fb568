"""The SCRAM credentials of users: describe and alter (KIP-554)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import ask_controller, checked, error_of
from klamm.net.client import Connection
from klamm.net.scram import salted_password
from klamm.protocol.apis.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from klamm.protocol.apis.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ScramMechanism


class NewCredential(NamedTuple):
    """A password for one mechanism. Each password has its own random salt."""

    password: str
    iterations: int
    salt: bytes


async def describe_user_scram_credentials(
    client: ClusterClient, users: Iterable[str] | None = None
) -> dict[str, dict[ScramMechanism, int] | KafkaError]:
    """The iterations of each mechanism, for each of these users, or for all users with credentials.

    A user without credentials is left out. Raises KafkaError and ClientError.
    """
    name = DescribeUserScramCredentialsRequest.UserName
    request = DescribeUserScramCredentialsRequest(users=None if users is None else [name(name=each) for each in users])
    response = await client.send_to_any(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, lambda version: request, errors_of=lambda answer: [answer.error_code]
    )
    if (error := error_of(response.error_code, response.error_message)) is not None:
        raise error
    return {
        result.user: error_of(result.error_code, result.error_message)
        or {ScramMechanism(each.mechanism): each.iterations for each in result.credential_infos}
        for result in sorted(response.results, key=lambda result: result.user)
        if result.error_code != ErrorCode.RESOURCE_NOT_FOUND
    }


async def alter_user_scram_credentials(
    client: ClusterClient, user: str, changes: Mapping[ScramMechanism, NewCredential | None]
) -> None:
    """Sets a user's credentials; None deletes a credential. Passwords never leave the client. Raises KafkaError and
    ClientError."""
    struct = AlterUserScramCredentialsRequest
    request = struct(
        deletions=[
            struct.ScramCredentialDeletion(name=user, mechanism=mechanism)
            for mechanism, new in changes.items()
            if new is None
        ],
        upsertions=[
            struct.ScramCredentialUpsertion(
                name=user,
                mechanism=mechanism,
                iterations=new.iterations,
                salt=new.salt,
                salted_password=salted_password(mechanism.hash_name, new.password, new.salt, new.iterations),
            )
            for mechanism, new in changes.items()
            if new is not None
        ],
    )

    async def ask(connection: Connection, users: Sequence[str]) -> dict[str, KafkaError | None]:
        response = await connection.send(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, lambda version: request)
        return {result.user: error_of(result.error_code, result.error_message) for result in response.results}

    checked((await ask_controller(client, [user], ask))[user])
