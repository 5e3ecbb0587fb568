"""How a client's connections are secured: Kafka's properties `security.protocol`, `ssl.*` and `sasl.*`.

`tls.py` and `sasl.py` put the options into effect; this module imports next to nothing and reads no file.

What must stay true:
- An unknown property, or one without effect beside the others, is an error, so that no user relies on missing
  encryption.
- Options are immutable, comparable and picklable. No password and no key is in their `repr` or in an error message.

Source: org.apache.kafka.common.config.SslConfigs, SaslConfigs; DefaultSslEngineFactory for what excludes what.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from klamm.config.listeners import SECURITY_PROTOCOLS
from klamm.net.jaas import JaasError, LoginModule, parse_login_module
from klamm.net.oauth import IGNORED_BY_KAFKA, OAuthError, OAuthOptions, oauth_options
from klamm.net.oauth import PROPERTIES as OAUTH_PROPERTIES
from klamm.net.oauth import WITHOUT_EFFECT as OAUTH_WITHOUT_EFFECT
from klamm.net.pem import certificates, private_keys

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")

OAUTHBEARER = "OAUTHBEARER"
# The Java class that `sasl.jaas.config` names, without its package, which differs in some distributions.
_LOGIN_MODULES = {
    "PLAIN": "PlainLoginModule",
    "SCRAM-SHA-256": "ScramLoginModule",
    "SCRAM-SHA-512": "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
MECHANISMS = tuple(_LOGIN_MODULES)

_TLS_PROPERTIES = (
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
)
_SASL_PROPERTIES = ("sasl.mechanism", "sasl.jaas.config", *OAUTH_PROPERTIES, *OAUTH_WITHOUT_EFFECT)
PROPERTIES = ("security.protocol", *_TLS_PROPERTIES, *_SASL_PROPERTIES)
"""The properties that `security_options` understands."""

TRUSTSTORE_TO_PEM = "keytool -list -rfc -keystore STORE > truststore.pem"
KEYSTORE_TO_PEM = (
    "keytool -importkeystore -srckeystore STORE -destkeystore keystore.p12 -deststoretype PKCS12;"
    " openssl pkcs12 -in keystore.p12 -out keystore.pem"
)

_NO_STORE_PASSWORD = "a PEM store has no password; that of a private key is ssl.key.password"
_JAVAS_TLS = "it is a setting of Java's TLS"
_NO_LOGIN = f"the mechanisms are {', '.join(MECHANISMS)}, their credentials are in sasl.jaas.config"
REFUSED = {
    "ssl.truststore.password": _NO_STORE_PASSWORD,
    "ssl.keystore.password": _NO_STORE_PASSWORD,
    "ssl.protocol": "allowed versions of TLS are in ssl.enabled.protocols",
    "ssl.cipher.suites": _JAVAS_TLS,
    "ssl.engine.factory.class": _JAVAS_TLS,
    "ssl.keymanager.algorithm": _JAVAS_TLS,
    "ssl.provider": _JAVAS_TLS,
    "ssl.secure.random.implementation": _JAVAS_TLS,
    "ssl.trustmanager.algorithm": _JAVAS_TLS,
    "sasl.client.callback.handler.class": _NO_LOGIN,
    "sasl.kerberos.kinit.cmd": _NO_LOGIN,
    "sasl.kerberos.min.time.before.relogin": _NO_LOGIN,
    "sasl.kerberos.service.name": _NO_LOGIN,
    "sasl.kerberos.ticket.renew.jitter": _NO_LOGIN,
    "sasl.kerberos.ticket.renew.window.factor": _NO_LOGIN,
    "sasl.login.class": _NO_LOGIN,
}
"""Further properties of Java's clients, and why they are refused."""


class SecurityError(ValueError):
    """A property cannot be used. The message begins with its name."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The trusted brokers and the client's identity. A store is a PEM file or text; files are read on connecting.

    - `truststore_path`, `truststore_pem`: the trusted certificates; without either, the system's.
    - `keystore_path`, or `certificate_chain_pem` and `key_pem`: the client's certificate; without either, none is sent.
    - `check_host_name`: whether a broker's certificate must be for the host that the client connects to.
    - `versions`: consecutive members of TLS_VERSIONS.
    """

    truststore_path: str | None = None
    truststore_pem: str | None = None
    keystore_path: str | None = None
    certificate_chain_pem: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_host_name: bool = True
    versions: tuple[str, ...] = TLS_VERSIONS


@dataclass(frozen=True, slots=True)
class SaslOptions:
    """The client's credentials. `mechanism` is one of MECHANISMS; OAUTHBEARER has `oauth`, the others the rest."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    oauth: OAuthOptions | None = None


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """TLS and SASL options of a client's connections; without either: PLAINTEXT."""

    tls: TlsOptions | None = None
    sasl: SaslOptions | None = None


PLAINTEXT = SecurityOptions()


def security_options(properties: Mapping[str, str]) -> SecurityOptions:
    """The options for these properties, which are all in PROPERTIES. Raises SecurityError."""
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise SecurityError(f"security.protocol is {protocol!r}; allowed: {', '.join(SECURITY_PROTOCOLS)}")
    with_tls, with_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    for name in properties:
        if (name.startswith("ssl.") and not with_tls) or (name.startswith("sasl.") and not with_sasl):
            wanted = f"{'SASL_SSL' if with_sasl or name.startswith('sasl.') else 'SSL'}"
            raise SecurityError(f"{name} has no effect with security.protocol={protocol}; did you mean {wanted}?")
    return SecurityOptions(_tls(properties) if with_tls else None, _sasl(properties) if with_sasl else None)


# -- TLS --------------------------------------------------------------------------------------------------------------


def _tls(properties: Mapping[str, str]) -> TlsOptions:
    _check_type(properties, "ssl.truststore.type", TRUSTSTORE_TO_PEM)
    _check_type(properties, "ssl.keystore.type", KEYSTORE_TO_PEM)
    _check_one_of(properties, "ssl.truststore.location", "ssl.truststore.certificates")
    _check_one_of(properties, "ssl.keystore.location", "ssl.keystore.key")
    _check_one_of(properties, "ssl.keystore.location", "ssl.keystore.certificate.chain")
    _check_both(properties, "ssl.keystore.key", "ssl.keystore.certificate.chain")
    _check_both(properties, "ssl.keystore.certificate.chain", "ssl.keystore.key")
    if "ssl.key.password" in properties and not {"ssl.keystore.location", "ssl.keystore.key"} & properties.keys():
        raise SecurityError("ssl.key.password needs ssl.keystore.location or ssl.keystore.key, whose password it is")
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", ""):
        raise SecurityError(
            f"ssl.endpoint.identification.algorithm is {algorithm!r}; allowed: https, or empty, which"
            " accepts a certificate of any host"
        )
    return TlsOptions(
        truststore_path=_path(properties, "ssl.truststore.location"),
        truststore_pem=_certificates(properties, "ssl.truststore.certificates"),
        keystore_path=_path(properties, "ssl.keystore.location"),
        certificate_chain_pem=_certificates(properties, "ssl.keystore.certificate.chain"),
        key_pem=_private_key(properties, "ssl.keystore.key"),
        key_password=properties.get("ssl.key.password"),
        check_host_name=algorithm == "https",
        versions=_versions(properties, "ssl.enabled.protocols"),
    )


def _check_type(properties: Mapping[str, str], name: str, how_to_convert: str) -> None:
    kind = properties.get(name, "PEM").upper()
    if kind != "PEM":
        raise SecurityError(
            f"{name} is {kind!r}; allowed: PEM. A JKS or PKCS12 store becomes one with: {how_to_convert}"
        )


def _check_one_of(properties: Mapping[str, str], one: str, other: str) -> None:
    if one in properties and other in properties:
        raise SecurityError(f"{one} and {other} exclude each other")


def _check_both(properties: Mapping[str, str], one: str, other: str) -> None:
    if one in properties and other not in properties:
        raise SecurityError(f"{one} needs {other}")


def _path(properties: Mapping[str, str], name: str) -> str | None:
    path = properties.get(name)
    if path is not None and (not path or "\0" in path):
        raise SecurityError(f"{name} is {path!r}; allowed: the path of a file in PEM")
    return path


def _certificates(properties: Mapping[str, str], name: str) -> str | None:
    text = properties.get(name)
    if text is None:
        return None
    found = certificates(text)
    if not found:
        raise SecurityError(f"{name} has no certificate; allowed: text in PEM, -----BEGIN CERTIFICATE----- ...")
    return "".join(found)


def _private_key(properties: Mapping[str, str], name: str) -> str | None:
    text = properties.get(name)
    if text is None:
        return None
    found = private_keys(text)
    if len(found) != 1:
        raise SecurityError(
            f"{name} has {len(found)} private keys; allowed: text in PEM with one, -----BEGIN PRIVATE KEY----- ..."
        )
    return found[0]


def _versions(properties: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = properties.get(name)
    if text is None:
        return TLS_VERSIONS
    given = [part.strip() for part in text.split(",")]
    if not set(given) <= set(TLS_VERSIONS):
        raise SecurityError(f"{name} is {text!r}; allowed: {', '.join(TLS_VERSIONS)}")
    return tuple(version for version in TLS_VERSIONS if version in given)


# -- SASL -------------------------------------------------------------------------------------------------------------


def _sasl(properties: Mapping[str, str]) -> SaslOptions:
    allowed = ", ".join(MECHANISMS)
    mechanism = properties.get("sasl.mechanism")
    if mechanism is None:
        raise SecurityError(
            f"sasl.mechanism is missing; allowed: {allowed} (Kafka's default, GSSAPI, is not supported)"
        )
    if mechanism not in MECHANISMS:
        raise SecurityError(f"sasl.mechanism is {mechanism!r}; allowed: {allowed}")
    if mechanism == OAUTHBEARER:
        return _oauth(properties)
    for name in (*OAUTH_PROPERTIES, *OAUTH_WITHOUT_EFFECT):
        if name in properties:
            raise SecurityError(f"{name} has no effect with sasl.mechanism={mechanism}; did you mean {OAUTHBEARER}?")
    module = _login_module(properties, mechanism)
    login = {name: value for name, value in module.options.items() if name not in IGNORED_BY_KAFKA}
    if set(login) != {"username", "password"}:
        raise SecurityError("sasl.jaas.config does not have exactly the options username and password")
    username, password = login["username"], login["password"]
    for name, value in login.items():
        if not value or "\0" in value or not is_encodable(value):
            raise SecurityError(f"sasl.jaas.config has a {name} that is empty or has an invalid character")
    return SaslOptions(mechanism, username, password)


def _oauth(properties: Mapping[str, str]) -> SaslOptions:
    # sasl.jaas.config is optional: the token endpoint and its client have properties of their own (KIP-1139).
    login = _login_module(properties, OAUTHBEARER).options if "sasl.jaas.config" in properties else {}
    try:
        return SaslOptions(OAUTHBEARER, oauth=oauth_options(properties, login))
    except OAuthError as error:
        raise SecurityError(str(error)) from None


def _login_module(properties: Mapping[str, str], mechanism: str) -> LoginModule:
    name = _LOGIN_MODULES[mechanism]
    line = properties.get("sasl.jaas.config")
    if line is None:
        raise SecurityError(f'sasl.jaas.config is missing; allowed: ...{name} required username="..." ...;')
    try:
        module = parse_login_module(line)
    except JaasError as error:
        raise SecurityError(f"sasl.jaas.config, {error}") from None
    if module.name.rpartition(".")[2] != name:
        raise SecurityError(f"sasl.jaas.config does not name the login module of {mechanism}; allowed: {name}")
    return module


def is_encodable(text: str) -> bool:
    """Whether a request can carry the text. A lone surrogate, such as `\\ud800` in a file, has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
