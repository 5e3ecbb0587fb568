"""Adobe's S3Mock: another implementation of S3's protocol, in Java, for a second opinion."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.oracles import bring_jars, java_command
from support.processes import ManagedProcess, free_port

S3MOCK = (
    "com.adobe.testing:s3mock:5.2.0",
    # Maven takes an older one, which its logback does not know.
    "org.slf4j:slf4j-api:2.0.18",
)


@contextmanager
def running_s3mock(directory: Path, bucket: str) -> Iterator[tuple[str, int]]:
    """The address of an S3Mock with this bucket, whose log is in the directory."""
    port = free_port()
    command = java_command(
        bring_jars("s3mock-5.2", S3MOCK),
        "com.adobe.testing.s3mock.S3MockApplication",
        "--server.address=127.0.0.1",
        "--server.port=0",
        f"--com.adobe.testing.s3mock.httpPort={port}",
        f"--com.adobe.testing.s3mock.store.initialBuckets={bucket}",
        f"--com.adobe.testing.s3mock.store.root={directory}",
    )
    process = ManagedProcess("S3Mock", command, directory.parent / "s3mock.log")
    try:
        process.wait_for("Started S3MockApplication", 120)
        yield "127.0.0.1", port
    finally:
        process.kill()
