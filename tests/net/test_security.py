"""Kafka's properties of security: their values, and the errors for wrong ones."""

import base64
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.net.pem import certificates, private_keys
from klamm.net.security import (
    PLAINTEXT,
    PROPERTIES,
    SaslOptions,
    SecurityError,
    SecurityOptions,
    TlsOptions,
    security_options,
)

TLS = {"security.protocol": "SSL"}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n"
PLAIN_LINE = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";'
SCRAM_LINE = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";'
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_LINE}


def test_what_properties_become() -> None:
    assert security_options({}) == security_options({"security.protocol": "plaintext"}) == PLAINTEXT
    assert security_options(TLS) == SecurityOptions(tls=TlsOptions())
    assert security_options(
        {
            **TLS,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/trust.pem",
            "ssl.keystore.type": "pem",
            "ssl.keystore.location": "/key.pem",
            "ssl.key.password": "secret",
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.3",
        }
    ) == SecurityOptions(
        tls=TlsOptions(
            truststore_path="/trust.pem",
            keystore_path="/key.pem",
            key_password="secret",
            check_host_name=False,
            versions=("TLSv1.3",),
        )
    )
    assert security_options(
        {
            **TLS,
            "ssl.truststore.certificates": f"of one {CERTIFICATE} of another {CERTIFICATE}",
            "ssl.keystore.key": f"{CERTIFICATE}{KEY}",
            "ssl.keystore.certificate.chain": CERTIFICATE.replace("\n", " "),
            "ssl.endpoint.identification.algorithm": "HTTPS",
            "ssl.enabled.protocols": "TLSv1.3 , TLSv1.2",
        }
    ) == SecurityOptions(tls=TlsOptions(truststore_pem=CERTIFICATE * 2, certificate_chain_pem=CERTIFICATE, key_pem=KEY))
    assert security_options(SASL) == SecurityOptions(TlsOptions(), SaslOptions("PLAIN", "alice", "secret"))
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.jaas.config": SCRAM_LINE}
        assert security_options(given) == SecurityOptions(sasl=SaslOptions(mechanism, "alice", "secret"))
    # As some distributions of Spark name it.
    shaded = security_options({**SASL, "sasl.jaas.config": f"kafkashaded.{PLAIN_LINE}"})
    assert shaded == security_options(SASL)


def test_options_tell_no_secret_and_can_be_sent() -> None:
    options = security_options(
        {
            **SASL,
            "ssl.keystore.key": KEY,
            "ssl.keystore.certificate.chain": CERTIFICATE,
            "ssl.key.password": "secret",
        }
    )
    assert "secret" not in repr(options)
    assert "BBBB" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options) == hash(pickle.loads(pickle.dumps(options)))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"security.protocol": "TLS"}, "is 'TLS'; allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"ssl.key.password": "secret"}, "no effect with security.protocol=PLAINTEXT; did you mean SSL?"),
        ({"sasl.mechanism": "PLAIN"}, "no effect with security.protocol=PLAINTEXT; did you mean SASL_SSL?"),
        ({**TLS, "sasl.jaas.config": PLAIN_LINE}, "no effect with security.protocol=SSL; did you mean SASL_SSL?"),
        (
            {**SASL, "security.protocol": "SASL_PLAINTEXT", "ssl.truststore.location": "x"},
            "no effect with security.protocol=SASL_PLAINTEXT; did you mean SASL_SSL?",
        ),
        (
            {**TLS, "ssl.truststore.type": "JKS"},
            "is 'JKS'; allowed: PEM. A JKS or PKCS12 store becomes one with: keytool",
        ),
        (
            {**TLS, "ssl.keystore.type": "PKCS12"},
            "is 'PKCS12'; allowed: PEM. A JKS or PKCS12 store becomes one with: key",
        ),
        (
            {**TLS, "ssl.truststore.location": "x", "ssl.truststore.certificates": CERTIFICATE},
            "ssl.truststore.location and ssl.truststore.certificates exclude each other",
        ),
        ({**TLS, "ssl.truststore.location": ""}, "ssl.truststore.location is ''; allowed: the path of a file"),
        ({**TLS, "ssl.truststore.certificates": KEY}, "ssl.truststore.certificates has no certificate; allowed: text"),
        ({**TLS, "ssl.keystore.key": KEY}, "ssl.keystore.key needs ssl.keystore.certificate.chain"),
        ({**TLS, "ssl.keystore.certificate.chain": CERTIFICATE}, "chain needs ssl.keystore.key"),
        (
            {**TLS, "ssl.keystore.certificate.chain": CERTIFICATE, "ssl.keystore.key": "secret"},
            "ssl.keystore.key has 0 private keys; allowed: text in PEM with one",
        ),
        (
            {**TLS, "ssl.keystore.certificate.chain": CERTIFICATE, "ssl.keystore.key": KEY * 2},
            "ssl.keystore.key has 2 private keys",
        ),
        ({**TLS, "ssl.keystore.location": "x", "ssl.keystore.key": KEY}, "exclude each other"),
        ({**TLS, "ssl.key.password": "secret"}, "ssl.key.password needs ssl.keystore.location or ssl.keystore.key"),
        ({**TLS, "ssl.endpoint.identification.algorithm": "LDAPS"}, "is 'ldaps'; allowed: https, or empty"),
        ({**TLS, "ssl.enabled.protocols": "TLSv1.1"}, "is 'TLSv1.1'; allowed: TLSv1.2, TLSv1.3"),
        ({**TLS, "ssl.enabled.protocols": ""}, "is ''; allowed: TLSv1.2, TLSv1.3"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing; allowed: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "is 'GSSAPI'; allowed: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "name the login module of OAUTHBEARER; allowed: OAuthBearerLogin"),
        ({**SASL, "sasl.mechanism": "SCRAM-SHA-256"}, "allowed: ScramLoginModule"),
        (
            {**SASL, "sasl.jaas.config": SCRAM_LINE},
            "does not name the login module of PLAIN; allowed: PlainLoginModule",
        ),
        ({**SASL, "sasl.jaas.config": "secret"}, "sasl.jaas.config, at its end: the word required is missing"),
        ({**SASL, "sasl.jaas.config": PLAIN_LINE[:-1]}, "sasl.jaas.config, at its end: an option or a semicolon"),
        ({**SASL, "sasl.jaas.config": 'PlainLoginModule required username="a";'}, "exactly the options username"),
        (
            {**SASL, "sasl.jaas.config": PLAIN_LINE.replace(";", ' tokenauth="true";')},
            "does not have exactly the options username and password",
        ),
        ({**SASL, "sasl.jaas.config": PLAIN_LINE.replace("secret", "")}, "has a password that is empty or has"),
        ({**SASL, "sasl.jaas.config": PLAIN_LINE.replace("alice", "\\0")}, "has a username that is empty or has"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config is missing; allowed: "),
    ],
)
def test_a_wrong_property_is_named_with_what_is_allowed(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(SecurityError) as caught:
        security_options(wrong)
    assert told in str(caught.value)
    assert str(caught.value).partition(" ")[0].rstrip(",") in PROPERTIES
    assert "secret" not in str(caught.value)


PIECES = st.sampled_from(
    [
        "-----BEGIN CERTIFICATE-----",
        "-----END CERTIFICATE-----",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----END RSA PRIVATE KEY-----",
        "Proc-Type: 4,ENCRYPTED",
        "AAAA",
        "=",
        "\n",
        " ",
        "é",
        "\0",
    ]
)


@given(
    st.dictionaries(
        st.sampled_from(PROPERTIES),
        st.text()
        | st.lists(PIECES).map("".join)
        | st.sampled_from(["SSL", "SASL_SSL", "PEM", "PLAIN", PLAIN_LINE, KEY]),
    )
)
def test_garbage_is_an_error_or_options(properties: dict[str, str]) -> None:
    try:
        options = security_options(properties)
    except SecurityError as error:
        assert str(error).partition(" ")[0].rstrip(",") in PROPERTIES
        return
    assert pickle.loads(pickle.dumps(options)) == options


@given(st.binary(min_size=1, max_size=300), st.data())
def test_the_lines_of_a_pem_entry_may_be_broken_anywhere(content: bytes, data: st.DataObject) -> None:
    packed = base64.b64encode(content).decode()
    at = data.draw(st.lists(st.integers(0, len(packed)), max_size=5).map(sorted))
    broken = "\n ".join(packed[low:high] for low, high in zip([0, *at], [*at, len(packed)], strict=True))
    for label, parse in (("CERTIFICATE", certificates), ("ENCRYPTED PRIVATE KEY", private_keys)):
        text = f"before -----BEGIN {label}-----{broken}-----END {label}----- behind"
        (entry,) = parse(text)
        first, *lines, last = entry.splitlines()
        assert (first, last) == (f"-----BEGIN {label}-----", f"-----END {label}-----")
        assert base64.b64decode("".join(lines), validate=True) == content
        assert all(len(line) <= 64 for line in lines)


def test_an_old_encrypted_key_keeps_its_headers() -> None:
    key = (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n"
        "-----END RSA PRIVATE KEY-----\n"
    )
    assert private_keys(key) == [key]
