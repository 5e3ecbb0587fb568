"""Ports of this machine that a cluster keeps for its whole life, also while no server listens on them."""

import socket


class ReservedPort:
    """A free port of `host`, chosen by the system.

    The socket is bound and never listens. The system gives its port to no program that asks for any free port, and to
    no outgoing connection; a server that names the port (and sets SO_REUSEADDR, as servers do) gets it.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Gives the port back. Idempotent."""
        self._socket.close()
