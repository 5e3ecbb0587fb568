"""SaslAuthenticate (key 36): one exchange of SASL authentication (KIP-152).

Versions: 1 session lifetime (KIP-368); 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bytes, Int16, Int64, Request, Response, String, field


class SaslAuthenticateRequest(
    Request["SaslAuthenticateResponse"], api=ApiKey.SASL_AUTHENTICATE, versions="0-2", flexible="2+", size=SMALL
):
    auth_bytes: Bytes


class SaslAuthenticateResponse(Response):
    error_code: Int16
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = field("1+", default=0)
