"""A token endpoint (RFC 6749, 4.4) in a thread of the test, over HTTP or HTTPS."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

CLIENT_ID, CLIENT_SECRET = "shop", "open-sesame"

Answer = tuple[int, bytes]


def answered(body: Mapping[str, Any], status: int = 200) -> Answer:
    return status, json.dumps(body).encode()


@dataclass
class TokenEndpoint:
    """`answer` makes the answer to each good request; `scopes` are what was asked for."""

    answer: Callable[[int], Answer]
    url: str = ""
    scopes: list[str | None] = field(default_factory=list)

    def answer_to(self, authorization: str | None, form: Mapping[str, list[str]]) -> Answer:
        wanted = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {wanted}":
            # An endpoint that is too helpful: it repeats what it got.
            told = base64.b64decode((authorization or "").removeprefix("Basic ")).decode()
            return answered({"error": "invalid_client", "error_description": f"not known: {told}"}, 401)
        if form.get("grant_type") != ["client_credentials"]:
            return answered({"error": "unsupported_grant_type"}, 400)
        self.scopes.append(form.get("scope", [None])[0])
        return self.answer(len(self.scopes))


@contextmanager
def token_endpoint(answer: Callable[[int], Answer], tls: tuple[Path, Path] | None = None) -> Iterator[TokenEndpoint]:
    """`tls` are the files of a certificate for 127.0.0.1 and of its key."""
    endpoint = TokenEndpoint(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, text = endpoint.answer_to(self.headers.get("Authorization"), parse_qs(body))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", text.decode())
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    endpoint.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/oauth2/token"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
