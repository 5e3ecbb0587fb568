"""TLS of the wire client: trusted certificates, the client's identity, and explanations of failed handshakes.

What must stay true:
- By default the client checks a broker's certificate, and that the certificate is for the host that it connects to.
- A private key never gets a name in the file system beside the user's own file.

Source: org.apache.kafka.common.security.ssl.DefaultSslEngineFactory.
"""

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from klamm.net.security import KEYSTORE_TO_PEM, TRUSTSTORE_TO_PEM, SecurityError, TlsOptions

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

NO_TLS = "the broker does not speak TLS at this port; see security.protocol"
_NO_VERSION = "the broker and the client have no version of TLS in common; see ssl.enabled.protocols"
# Advice to the user, by OpenSSL's name of the reason. Other reasons mostly mean that a broker refuses the client:
# OpenSSL reports the refusal of a Java broker as a broken record.
_ADVICE = {
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "TLSV1_ALERT_PROTOCOL_VERSION": _NO_VERSION,
    "UNSUPPORTED_PROTOCOL": _NO_VERSION,
}
_REFUSED = "most likely the broker wants a certificate of the client, and one that it trusts; see ssl.keystore.location"
_OTHER_HOST = frozenset({62, 64})  # OpenSSL's codes for a certificate of another host name and of another IP address


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """The TLS context for connections. Reads the stores' files. Raises SecurityError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.check_host_name
    versions = [_VERSIONS[name] for name in options.versions]
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    _trust(context, options)
    if options.keystore_path is not None or options.key_pem is not None:
        _identify(context, options)
    return context


def explain(error: ssl.SSLError, host: str) -> str:
    """Why a handshake failed and what to do, in a sentence for the user."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        reason = error.reason or str(error)
        return f"the TLS handshake failed ({reason}): {_ADVICE.get(reason, _REFUSED)}"
    if error.verify_code in _OTHER_HOST:
        return (
            f"the broker's certificate is not of {host}: {error.verify_message} Connect by a name in the certificate,"
            " or leave ssl.endpoint.identification.algorithm empty to accept any host"
        )
    return (
        f"the broker's certificate is not trusted: {error.verify_message}; see ssl.truststore.location, which"
        " must contain the certificate of its issuer"
    )


def _trust(context: ssl.SSLContext, options: TlsOptions) -> None:
    path, text = options.truststore_path, options.truststore_pem
    if path is None and text is None:
        context.load_default_certs()
        return
    # As in Java, every certificate of the store is trusted, not only self-signed ones.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=path, cadata=text)
    except ssl.SSLError as error:
        if path is None:
            raise SecurityError(f"ssl.truststore.certificates has a broken certificate{_reason(error)}") from None
        raise SecurityError(
            f"ssl.truststore.location: {path} has no certificates in PEM{_reason(error)};"
            f" a JKS or PKCS12 store becomes PEM with: {TRUSTSTORE_TO_PEM}"
        ) from None
    except OSError as error:
        raise SecurityError(f"ssl.truststore.location: {path} cannot be read: {error.strerror}") from None


def _identify(context: ssl.SSLContext, options: TlsOptions) -> None:
    # Without a password OpenSSL would ask for it at the terminal.
    password = options.key_password or ""
    path = options.keystore_path
    with ExitStack() as files:
        chain, key = path, None
        if chain is None:
            chain = files.enter_context(_nameless(options.certificate_chain_pem or ""))
            key = files.enter_context(_nameless(options.key_pem or ""))
        try:
            context.load_cert_chain(chain, key, lambda: password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise SecurityError("ssl.keystore: the private key is not that of the first certificate") from None
            what = f"no certificate with its private key in PEM, or ssl.key.password is not the key's{_reason(error)}"
            if path is None:
                raise SecurityError(f"ssl.keystore.certificate.chain and ssl.keystore.key have {what}") from None
            raise SecurityError(
                f"ssl.keystore.location: {path} has {what}; a JKS or PKCS12 store becomes PEM with: {KEYSTORE_TO_PEM}"
            ) from None
        except ValueError:
            raise SecurityError("ssl.key.password is longer than any password can be") from None
        except OSError as error:
            raise SecurityError(f"ssl.keystore.location: {path} cannot be read: {error.strerror}") from None


def _reason(error: ssl.SSLError) -> str:
    return f" ({error.reason})" if error.reason else ""


@contextmanager
def _nameless(text: str) -> Iterator[str]:
    """A path to the text in an anonymous file: Python's ssl reads a client's certificate only from files."""
    # Imported here because few clients have a certificate.
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"
