"""Files in a directory and in an object store, with the same promises; and what a store may do."""

import io
import re
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klamm.spark.files import Files, FilesError, ObjectFiles, files_at
from support.spark import object_store
from support.spark.object_store import BUCKET, SECRET, Store


@pytest.fixture
def remote(store: Store, url: str) -> Files:
    return files_at(url, store.options)


@pytest.fixture(params=["directory", "object store"])
def files(request: pytest.FixtureRequest, tmp_path: Path, remote: Files) -> Files:
    return files_at(str(tmp_path)) if request.param == "directory" else remote


TABLE = pa.table({"offset": [1, 2, 3]})


def fill(sink: io.RawIOBase) -> bool:
    with pq.ParquetWriter(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return True


def test_a_file_is_created_once(files: Files) -> None:
    with files.adding("commits"):
        assert files.create("commits/1", b"first")
        assert not files.create("commits/1", b"second")
        assert not files.create("commits/1", b"second")
        assert files.create("commits/2", b"")
    assert files.read("commits/1") == b"first"
    assert files.paths("commits") == ["commits/1", "commits/2"]
    assert files.paths("commits", "commits/1") == ["commits/2"]
    assert files.paths("nothing") == []
    with pytest.raises(FileNotFoundError):
        files.read("commits/3")
    files.remove("commits/1")
    files.remove("commits/1")
    assert files.paths("commits") == ["commits/2"]


def test_a_parquet_file_is_found_when_it_is_complete(files: Files) -> None:
    stem = "data/topic/00000-1-2"
    assert files.find(stem) is None
    files.write(stem, lambda sink: fill(sink) and False)
    files.write(stem + "-lossy", fill)

    def failing(sink: io.RawIOBase) -> bool:
        fill(sink)
        raise KeyError("reason")

    with pytest.raises(KeyError, match="reason"):
        files.write(stem, failing)
    assert files.find(stem) is None
    files.write(stem, fill)
    found = files.find(stem)
    assert found is not None
    files.write(stem, fill)
    assert pq.ParquetFile(files.open(found)).read().equals(TABLE)
    assert pq.read_metadata(files.open(found)).num_rows == 3
    status = files.status(found)
    assert status.size_bytes > 100
    assert status.modified_ms > 1_600_000_000_000


# S3Mock looks whether there is an object, and then makes it: of several requests at once several succeed.
@pytest.mark.parametrize("stores", ["moto"], indirect=True)
def test_many_programs_create_one_file(files: Files) -> None:
    winners: list[int] = []

    def create(number: int) -> None:
        if files.create("commits/1", b"%d" % number):
            winners.append(number)

    with files.adding("commits"):
        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(winners) == 1
    assert files.read("commits/1") == b"%d" % winners[0]


def test_more_objects_than_a_page_has(store: Store, remote: Files, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    for number in range(33):
        store.client.put_object(Bucket=BUCKET, Key=f"{prefix}/commits/{number:05}", Body=b"")
    store.client.put_object(Bucket=BUCKET, Key=f"{prefix}/commits2", Body=b"")
    expected = [f"commits/{number:05}" for number in range(33)]
    assert remote.paths("commits") == expected
    assert remote.paths("commits", "commits/00008") == expected[9:]


@pytest.mark.parametrize("fault", [object_store.REFUSE, object_store.LOSE_ANSWER, object_store.CUT_ANSWER])
@pytest.mark.parametrize("code", [None, object_store.SLOW_DOWN, object_store.INTERNAL_ERROR, object_store.CONFLICT])
def test_a_created_file_is_recognized_whatever_becomes_of_the_answer(
    store: Store, remote: Files, fault: str, code: str | None
) -> None:
    faults = iter([fault, *([code] if code else [])])
    store.rule = lambda request: next(faults, None) if request.puts("commits/1") else None
    assert remote.create("commits/1", b"ours")
    faults = iter([fault, *([code] if code else [])])
    assert not remote.create("commits/1", b"theirs")
    assert remote.read("commits/1") == b"ours"


def test_another_programs_request_that_is_not_decided(store: Store, remote: Files) -> None:
    """S3 answers 409 to one of two requests at the same time, whatever becomes of the other."""
    store.rule = lambda request: object_store.CONFLICT if request.puts("commits/1") else None
    with pytest.raises(FilesError, match=r"commits/1: .*409 Conflict"):
        remote.create("commits/1", b"ours")


def test_a_large_file_is_uploaded_in_parts(store: Store, remote: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.spark.files.PART_BYTES", 5 * 1024 * 1024)
    store.requests.clear()
    content = bytes(12 * 1024 * 1024)

    def large(sink: io.RawIOBase) -> bool:
        for start in range(0, len(content), 1024 * 1024):
            sink.write(content[start : start + 1024 * 1024])
        return True

    def uploads() -> list[str]:
        return [f"{each.method} {re.sub('=[^&]*', '', each.path.partition('?')[2])}" for each in store.requests]

    remote.write("data/a", large)
    assert sorted(uploads()) == ["POST uploadId", "POST uploads", *["PUT partNumber&uploadId"] * 3]
    # The answer to the last request is lost; its repetition is refused, because the upload has ended.
    store.rule = lambda request: (
        object_store.LOSE_ANSWER if request.method == "POST" and "uploadId" in request.path else None
    )
    remote.write("data/b", large)
    found = remote.find("data/b")
    assert found is not None
    assert remote.status(found).size_bytes == len(content)
    # An upload that fails leaves nothing behind.
    store.rule = lambda request: object_store.DENIED if "partNumber=2" in request.path else None
    with pytest.raises(FilesError, match=r"data/c/[0-9a-f]*\.parquet: .*403 Forbidden"):
        remote.write("data/c", large)
    store.rule = lambda request: None

    def failing(sink: io.RawIOBase) -> bool:
        large(sink)
        raise KeyError("reason")

    with pytest.raises(KeyError):
        remote.write("data/c", failing)
    remote.write("data/c", lambda sink: large(sink) and False)
    assert remote.find("data/c") is None
    assert store.unfinished_uploads() == 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (object_store.UNCONDITIONAL, "does not refuse to replace an object .*, so of two programs one could replace"),
        (object_store.NOT_IMPLEMENTED, "does not refuse to replace an object .*: .*501 Not Implemented"),
        (object_store.DENIED, "/probe: .*403 Forbidden"),
    ],
)
def test_a_store_that_cannot_be_trusted_is_refused(
    store: Store, remote: Files, url: str, fault: str, reason: str
) -> None:
    store.rule = lambda request: fault if request.puts("probe") else None
    with pytest.raises(FilesError, match=f"^{re.escape(url)}.*{reason}"), remote.adding("commits"):
        pytest.fail("it may not add")


def test_a_place_that_is_none(store: Store, tmp_path: Path) -> None:
    for place, options, reason in (
        ("ftp://host/x", {}, "files cannot be kept in ftp://; allowed: a directory, s3, s3a, gs"),
        ("s3://", {}, "s3:/.*Unable to recogni[sz]e URL"),
        ("s3://bucket/x", {"bogus": SECRET}, "Configuration key: 'bogus' is not valid"),
        ("s3://bucket/x", {"allow_http": "perhaps"}, "failed to parse"),
        (str(tmp_path), {"region": "x"}, "is a directory; it takes no storage options"),
    ):
        with pytest.raises(FilesError, match=reason) as failure:
            files_at(place, options)
        assert SECRET not in str(failure.value)
    with (
        pytest.raises(FilesError, match=r"^s3://nobody/x: the store has no such bucket or container"),
        files_at("s3://nobody/x", store.options).adding("commits"),
    ):
        pytest.fail("it may not add")


@pytest.mark.parametrize(
    "url", ["s3://b/a?x", "s3://b/a#x", "s3://b/a%20x", "s3://b/../x", "s3://b/a//x", "s3://b/a\nx"]
)
def test_a_url_that_does_not_mean_one_place(url: str) -> None:
    """obstore leaves out what is behind ? and #, for example: two archives would be one."""
    with pytest.raises(FilesError, match="the URL of an object store has no "):
        files_at(url, {"region": "x"})


def test_a_url_with_a_password() -> None:
    with pytest.raises(FilesError, match="has no password in it") as failure:
        files_at(f"s3://key:{SECRET}@bucket/x")
    assert SECRET not in str(failure.value)


def test_secrets_are_not_shown(store: Store, remote: Files) -> None:
    assert isinstance(remote, ObjectFiles)
    assert SECRET not in f"{remote!r} {remote}"
    assert remote.reason(ValueError(f"x {SECRET} y")) == "x [hidden] y"
    store.rule = lambda request: object_store.DENIED
    with pytest.raises(FilesError) as failure:
        remote.paths("commits")
    assert SECRET not in str(failure.value)
