"""PEM text: certificates and keys between -----BEGIN ...----- and -----END ...-----.

What must stay true: an entry is returned in the layout that OpenSSL reads, however its lines were broken. Properties
often hold PEM in one line, and Kafka accepts that.

Source: org.apache.kafka.common.security.ssl.DefaultSslEngineFactory.PemParser; RFC 7468.
"""

import re

_ENTRY = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_LINE_CHARACTERS = 64


def certificates(text: str) -> list[str]:
    """The certificates of a PEM text, in their order."""
    return [entry for label, entry in _entries(text) if label == "CERTIFICATE"]


def private_keys(text: str) -> list[str]:
    """The private keys of a PEM text, including encrypted keys."""
    return [entry for label, entry in _entries(text) if label.endswith("PRIVATE KEY")]


def _entries(text: str) -> list[tuple[str, str]]:
    """(label, entry), without characters that are not base64. An entry with headers, the old form of encrypted keys, is
    left as it is."""
    found = []
    for match in _ENTRY.finditer(text):
        label, body = match[1], match[2]
        packed = "".join(body.split())
        if _BASE64.fullmatch(packed):
            lines = [packed[at : at + _LINE_CHARACTERS] for at in range(0, len(packed), _LINE_CHARACTERS)]
            body = "\n" + "\n".join(lines) + "\n"
        elif "Proc-Type:" not in body or not body.isascii():
            continue
        found.append((label, f"-----BEGIN {label}-----{body}-----END {label}-----\n"))
    return found
