"""kcat and Apache Kafka's own console producer and consumer (2.8.2)."""

import shutil
import subprocess
from pathlib import Path

import pytest
from vega_datasets import local_data

from support.clients import COMPRESSIONS, Librdkafka, Record
from support.long_rows import long
from support.oracles import java_tool

PACKAGES = Path("/var/lib/dpkg/status")
CSV = Path(local_data.seattle_weather.filepath)

# The tool itself sets acks to 1, which idempotence forbids.
IDEMPOTENT = ("--producer-property", "enable.idempotence=true", "--request-required-acks", "all")

needs_kcat = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")


def kcat(*arguments: str | Path, stdin: bytes = b"") -> bytes:
    done = subprocess.run(["kcat", *map(str, arguments)], input=stdin, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def package_lines() -> list[bytes]:
    if not PACKAGES.exists():
        pytest.skip(f"{PACKAGES} is not on this machine")
    # Neither tool sends an empty line as a record: kcat skips it.
    return [line for line in PACKAGES.read_bytes().split(b"\n") if line]


@needs_kcat
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_kcat_writes_and_reads_keys_and_headers(bootstrap: str, topic: str, compression: str) -> None:
    arguments = ("-b", bootstrap, "-t", topic, "-p", "0")
    kcat(
        "-P",
        *arguments,
        "-z",
        compression,
        "-K:",
        "-H",
        "from=kcat",
        "-X",
        "enable.idempotence=true",
        stdin=b"k:v\nl:w\n",
    )
    assert kcat("-C", *arguments, "-o", "beginning", "-e", "-q", "-f", "%o %k %s %h\\n") == (
        b"0 k v from=kcat\n1 l w from=kcat\n"
    )
    got = Librdkafka.read(bootstrap, topic, 2)
    assert [record[:3] for record in got] == [(b"v", b"k", (("from", b"kcat"),)), (b"w", b"l", (("from", b"kcat"),))]


@needs_kcat
def test_kcat_carries_the_package_database(bootstrap: str, topic: str) -> None:
    content = b"\n".join(package_lines()) + b"\n"
    kcat("-P", "-b", bootstrap, "-t", topic, "-p", "0", "-z", "zstd", stdin=content)
    assert kcat("-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-u") == content


@needs_kcat
def test_kcat_carries_a_csv(bootstrap: str, topic: str) -> None:
    content = CSV.read_bytes()
    kcat("-P", "-b", bootstrap, "-t", topic, "-p", "0", stdin=content)
    assert kcat("-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-u") == content


def console_producer(jars: Path, bootstrap: str, topic: str, stdin: bytes, *options: str) -> None:
    java_tool(
        jars, "kafka.tools.ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", topic, *options, stdin=stdin
    )


def console_consumer(jars: Path, bootstrap: str, topic: str, count: int, *options: str) -> bytes:
    where = ("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest")
    return java_tool(jars, "kafka.tools.ConsoleConsumer", *where, "--max-messages", str(count), *options)


@pytest.mark.java
@pytest.mark.parametrize("compression", [*long(*COMPRESSIONS[:-1]), "zstd"])
def test_console_tools_write_and_read(bootstrap: str, topic: str, kafka_jars: Path, compression: str) -> None:
    options = ("--compression-codec", compression, *IDEMPOTENT)
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    console_producer(kafka_jars, bootstrap, topic, b"k:v\nl:\n", *options, *keyed)
    read = console_consumer(
        kafka_jars, bootstrap, topic, 2, "--property", "print.key=true", "--property", "print.offset=true"
    )
    assert read == b"Offset:0\tk\tv\nOffset:1\tl\t\n"
    assert [record[:2] for record in Librdkafka.read(bootstrap, topic, 2)] == [(b"v", b"k"), (b"", b"l")]


@pytest.mark.java
def test_console_tools_carry_the_package_database(bootstrap: str, topic: str, kafka_jars: Path) -> None:
    lines = package_lines()
    content = b"\n".join(lines) + b"\n"
    console_producer(kafka_jars, bootstrap, topic, content, *IDEMPOTENT)
    assert console_consumer(kafka_jars, bootstrap, topic, len(lines)) == content
    assert [record.value for record in Librdkafka.read(bootstrap, topic, len(lines))] == lines


@pytest.mark.java
def test_console_tools_carry_a_csv(bootstrap: str, topic: str, kafka_jars: Path) -> None:
    content = CSV.read_bytes()
    Librdkafka.write(bootstrap, topic, [Record(line) for line in content.splitlines()], "snappy")
    assert console_consumer(kafka_jars, bootstrap, topic, len(content.splitlines())) == content
