"""An object store in a thread of the tests (moto's S3), and a proxy before it that breaks what a test names.

What moto does: If-None-Match: * and If-Match on PutObject and CompleteMultipartUpload, multipart uploads, ListObjectsV2
with pages and start-after. It checks no signature. What tests rely on is tested.
"""

import http.client
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import boto3
import pyarrow.parquet as pq
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer

from klamm.spark.files import files_at
from klamm.spark.pipelines import delta
from klamm.spark.pipelines.archive import Progress, archive
from klamm.spark.pipelines.commit_log import CommitLog
from support.s3mock import running_s3mock
from support.spark.archiving import as_rows, one_process

T = TypeVar("T")

BUCKET = "archives"
SECRET = "a-secret-that-nobody-may-see"
SLOW_DOWN = "503 SlowDown"
INTERNAL_ERROR = "500 InternalError"
CONFLICT = "409 ConditionalRequestConflict"
DENIED = "403 AccessDenied"
NOT_IMPLEMENTED = "501 NotImplemented"
# The request does not get to the store; its answer does not get back; half of its answer does.
REFUSE, LOSE_ANSWER, CUT_ANSWER = "refuse", "lose answer", "cut answer"
# The store ignores the condition of the request.
UNCONDITIONAL = "unconditional"
# The process that sent the request dies, before the store has it, or behind that.
KILL_BEFORE, KILL_BEHIND = "kill before", "kill behind"

logging.getLogger("werkzeug").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Request:
    number: int
    method: str
    path: str
    headers: Mapping[str, str]

    def puts(self, part: str) -> bool:
        return self.method == "PUT" and part in self.path


Rule = Callable[[Request], str | None]


class Store:
    """The store and its proxy: `rule` says what is broken, `requests` has what came."""

    def __init__(self, backend: tuple[str, int]) -> None:
        self._backend = backend
        self.rule: Rule = lambda request: None
        self.requests: list[Request] = []
        self.victim: int | None = None
        self._lock = threading.Lock()
        self.victim_is_known = threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                store.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.endpoint = "http://{}:{}".format(*self._server.server_address)
        self.client: Any = boto3.client(
            "s3",
            endpoint_url="http://{}:{}".format(*backend),
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key=SECRET,
        )

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "allow_http": "true",
            "aws_access_key_id": "key",
            "aws_secret_access_key": SECRET,
        }

    def keys(self, prefix: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def unfinished_uploads(self) -> int:
        return len(self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            request = Request(len(self.requests), handler.command, handler.path, dict(handler.headers.items()))
            self.requests.append(request)
            fault = self.rule(request)
        headers = dict(handler.headers.items())
        if fault in (REFUSE, KILL_BEFORE):
            self._kill(fault)
            handler.close_connection = True
            return
        if fault is not None and fault[0].isdigit():
            status, code = fault.split()
            answer = f"<Error><Code>{code}</Code><Message>it was asked for</Message></Error>".encode()
            self._answer(handler, int(status), {"Content-Type": "application/xml"}, answer)
            return
        if fault == UNCONDITIONAL:
            headers = {name: value for name, value in headers.items() if not name.lower().startswith("if-")}
        backend = http.client.HTTPConnection(*self._backend, timeout=120)
        backend.request(handler.command, handler.path, body, headers)
        response = backend.getresponse()
        answer = response.read()
        backend.close()
        if fault in (LOSE_ANSWER, KILL_BEHIND):
            self._kill(fault)
            handler.close_connection = True
            return
        self._answer(handler, response.status, dict(response.getheaders()), answer, cut=fault == CUT_ANSWER)

    def _kill(self, fault: str) -> None:
        if fault in (KILL_BEFORE, KILL_BEHIND):
            assert self.victim_is_known.wait(120)
            assert self.victim is not None
            os.kill(self.victim, signal.SIGKILL)

    @staticmethod
    def _answer(
        handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, cut: bool = False
    ) -> None:
        try:
            handler.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    handler.send_header(name, value)
            length = headers.get("Content-Length") if handler.command == "HEAD" else None
            handler.send_header("Content-Length", length or str(len(body)))
            handler.end_headers()
            if handler.command != "HEAD":
                handler.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                handler.close_connection = True
        except ConnectionError:
            handler.close_connection = True


@contextmanager
def running_store() -> Iterator[Store]:
    """moto, with an empty bucket, behind a proxy."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        store = Store(server.get_host_and_port())
        store.client.create_bucket(Bucket=BUCKET)
        try:
            yield store
        finally:
            store.close()
    finally:
        server.stop()


@contextmanager
def running_second_opinion(directory: Path) -> Iterator[Store]:
    """S3Mock in the place of moto."""
    directory.mkdir()
    with running_s3mock(directory, BUCKET) as backend:
        store = Store(backend)
        try:
            yield store
        finally:
            store.close()


def archived_in(url: str, options: Mapping[str, str], topic: str) -> list[tuple[Any, ...]]:
    """All rows of a topic in an archive, in the order of partitions and offsets."""
    log = CommitLog(files_at(url, options))
    named = [each.file for each in log.ranges if each.file is not None and each.topic == topic]
    return as_rows(row for file in named for row in pq.read_table(log.files.open(file)).to_pylist())


def _fork_server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.spark.object_store", "klamm.spark.read.decoding_kernels"])
    return context


def apart(work: Callable[..., T], *arguments: object) -> T:
    """The result of the work in a process of its own. Where deltalake was used no fork can use it, as others do."""
    with ProcessPoolExecutor(1, _fork_server()) as pool:
        return pool.submit(work, *arguments).result()


def killed_at(store: Store, number: int, fault: str, work: Callable[..., object], *arguments: object) -> bool:
    """Does the work in a process of its own that dies at its n-th request; False when it came to its end."""
    first = len(store.requests)
    return killed_when(store, lambda request: request.number == first + number, fault, work, *arguments)


def killed_when(
    store: Store, is_last: Callable[[Request], bool], fault: str, work: Callable[..., object], *arguments: object
) -> bool:
    """Does the work in a process of its own that dies at such a request; False when it came to its end.

    The process comes from a server of forks, which has never used obstore: its threads do not survive a fork.
    """
    store.victim_is_known.clear()
    store.rule = lambda request: fault if is_last(request) else None
    process = _fork_server().Process(target=work, args=arguments)
    process.start()
    store.victim = process.pid
    store.victim_is_known.set()
    process.join(120)
    store.rule = lambda request: None
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return bool(process.exitcode != 0)


def archive_here(
    url: str, storage_options: Mapping[str, str], options: Mapping[str, str], per_file: int, **more: Any
) -> Any:
    """Archives in this process, whose tasks run one after another."""
    return archive(
        one_process(),
        url,
        options,
        offsets_per_file=per_file,
        ranges_per_commit=2,
        storage_options=storage_options,
        **more,
    )


# -- Delta tables in the store, for `apart` ---------------------------------------------------------------------------


def in_delta_table(url: str, storage_options: dict[str, str]) -> list[tuple[Any, ...]]:
    table = DeltaTable(f"{url}/data", storage_options=storage_options)
    return as_rows(table.to_pyarrow_table().to_pylist())


def overtaken_archive(url: str, storage_options: Mapping[str, str], options: Mapping[str, str]) -> None:
    """Archives with a Delta table; another program does so between two commits."""

    def overtake(progress: Progress) -> None:
        if progress.offsets_done == 10:
            archive_here(url, storage_options, options, 5, delta=True)

    archive_here(url, storage_options, options, 5, delta=True, on_progress=overtake)


def overtaken_publish(url: str, storage_options: Mapping[str, str]) -> bool:
    """Publishes; another program does so between this one's look at the table and its commit. Whether it did."""
    original = delta._add_action
    others: list[bool] = []

    def overtaken(*arguments: Any) -> Any:
        if not others:
            others.append(True)
            delta.publish(CommitLog(files_at(url, storage_options)))
        return original(*arguments)

    with patch.object(delta, "_add_action", overtaken):
        delta.publish(CommitLog(files_at(url, storage_options)))
    return bool(others)
