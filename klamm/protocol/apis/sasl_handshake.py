"""SaslHandshake (key 17): the choice of a SASL mechanism.

Versions: 1 the exchanges that follow are sent as SaslAuthenticate (KIP-152). No version is flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int16, Request, Response, String


class SaslHandshakeRequest(
    Request["SaslHandshakeResponse"], api=ApiKey.SASL_HANDSHAKE, versions="0-1", flexible=None, size=SMALL
):
    mechanism: String


class SaslHandshakeResponse(Response):
    error_code: Int16
    mechanisms: list[String]
