"""Certificates for tests, made by openssl."""

import subprocess
from pathlib import Path


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """Signs certificates; its own is the file `path`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._key = directory / "authority.key"
        self.path = directory / "authority.crt"
        name = ("-subj", f"/CN={directory.name}", "-days", "30")
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *name, "-keyout", self._key, "-out", self.path)

    def certificate(self, name: str, alternative: str) -> tuple[str, str]:
        """Certificate and private key (PKCS 8), in PEM; `alternative` is "DNS:localhost" or "IP:127.0.0.1", say."""
        key, request, extensions, signed = (
            self._directory / f"{name}.{suffix}" for suffix in ("key", "csr", "ext", "crt")
        )
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        extensions.write_text(f"subjectAltName={alternative}\n")
        signer = ("-CA", self.path, "-CAkey", self._key, "-CAcreateserial", "-days", "30")
        openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", signed)
        return signed.read_text(), key.read_text()


def one_line(pem: str) -> str:
    """The text as it stands in a file of properties."""
    return " ".join(pem.split("\n")).strip()
