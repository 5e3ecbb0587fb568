"""The control port of `klamm up --control-port`: it injects faults into the cluster, and kills and starts its servers.

`control.json` in the cluster's directory has the port's address and token, for `klamm faults`; only the user who
started the cluster can read it. It is removed when the cluster stops.
"""

import json
import os
from pathlib import Path

from klamm.faults.local_cluster import ClusterUnderFaults
from klamm.processes.tool_errors import ToolError, describe_os_error


class UpCluster(ClusterUnderFaults):
    """The cluster of `klamm up --control-port`."""

    @property
    def _file(self) -> Path:
        return self.plan.directory / "control.json"

    def serve(self, port: int) -> tuple[str, str]:
        """Opens the port, and writes the file; returns the URL and the file's path. Raises ToolError."""
        try:
            url, token = self.open_port(port=port)
        except OSError as error:
            raise ToolError(f"--control-port {port}: {describe_os_error(error)}") from error
        self._file.unlink(missing_ok=True)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({"url": url, "token": token}, file)
        return url, str(self._file)

    def close(self, *, kill: bool = False) -> None:
        # If this cluster has no control port, the file belongs to another cluster.
        if self.port is not None:
            self._file.unlink(missing_ok=True)
        super().close(kill=kill)
