"""Where files are kept: a directory, or a prefix in an object store, with the same few operations.

A path is relative to that place, with slashes. Both kinds are sent to executors as they are.

What must stay true:
- A file exists as a whole or not at all, and is never changed.
- If several programs `create` the same path, one succeeds. It knows this even if the answer of the store was lost: the
  content names its writer, so the existing content shows which program has written it.
- Several attempts to write the records of a range do not disturb each other. In a directory the first attempt gives the
  file its name. In an object store each attempt has its own name, so a repeated request does no harm.
- In a directory one program at a time adds files, because it holds the lock. An object store has no lock: programs add
  at the same time, and `create` decides.
- No repr and no error contains keys or passwords.
"""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from klamm.base.environment import FileSystem
from klamm.base.system_environment import SystemEnvironment, SystemFileSystem

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
# The size of a part of an upload. Each part that is being sent is in memory.
PART_BYTES: Final = 16 * 1024 * 1024
PARTS_AT_ONCE: Final = 2
_SUFFIX = ".parquet"
_TEMPORARY = ".tmp"
_LOCK = "lock"
# The name of an object in every place of a store to which files were added.
_PROBE = "probe"
# Attempts for a path on which the store reports a concurrent request.
_ATTEMPTS = 10
_READ_ATTEMPTS = 3
# obstore takes these options separately from the options of the store.
_CLIENT_OPTIONS: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
)
# The name of an option with a secret value contains one of these.
_SECRET: Final = ("key", "secret", "token", "password", "sas", "credential", "proxy_url")


class FilesError(ValueError):
    """The files cannot be read or written; the message says which and why."""


@dataclass(frozen=True, slots=True)
class FileStatus:
    size_bytes: int
    modified_ms: int


class Files(ABC):
    """The files below one place."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The directory's absolute path, or the URL, without a slash at the end."""

    @property
    @abstractmethod
    def is_locked(self) -> bool:
        """Whether only one program at a time can be within `adding`."""

    @abstractmethod
    def adding(self, *directories: str) -> AbstractContextManager[None]:
        """In this context the program may add files below these directories, which are created if missing.

        Raises FilesError when another program has the lock, and when the store does not refuse to replace an object.
        """

    @abstractmethod
    def paths(self, directory: str, after: str = "") -> list[str]:
        """The paths of all files below a directory, sorted; with `after` only later paths."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The whole content. Raises FileNotFoundError."""

    @abstractmethod
    def create(self, path: str, content: bytes) -> bool:
        """Creates a durable file in a directory that was given to `adding`, and returns whether this call created it.

        An existing file stays unchanged. No other program may create a file with the same content.
        """

    @abstractmethod
    def write(self, stem: str, fill: Callable[[Any], bool]) -> None:
        """Creates a durable Parquet file for `stem`, which `fill` writes to a binary file; no file if `fill` returns
        False.

        The content is never in memory as a whole.
        """

    @abstractmethod
    def find(self, stem: str) -> str | None:
        """The path of a file for `stem` that is complete and durable."""

    @abstractmethod
    def open(self, path: str) -> Any:
        """A source that pyarrow.parquet.ParquetFile can read."""

    @abstractmethod
    def status(self, path: str) -> FileStatus: ...

    @abstractmethod
    def remove(self, path: str) -> None:
        """Removes a file, if it exists."""

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The options with which other libraries reach the store."""
        return None

    def reason(self, error: BaseException) -> str:
        """An error's text without secrets."""
        return str(error)

    def address(self, path: str) -> str:
        """The absolute path, or the URL, of a file."""
        return f"{self.place}/{path}"


def files_at(place: "str | os.PathLike[str]", storage_options: Mapping[str, str] | None = None) -> Files:
    """The files of a directory, or of a URL such as s3://bucket/prefix.

    `storage_options` are obstore's options of stores and of the HTTP client: endpoint, region, aws_access_key_id,
    allow_http and so on. Missing options are taken from environment variables. Raises FilesError.
    """
    place = os.fspath(place)
    scheme, separator, _ = place.partition("://")
    if not separator:
        if storage_options:
            raise FilesError(f"{place} is a directory; it takes no storage options")
        return LocalFiles(os.path.abspath(place))
    if scheme not in SCHEMES:
        raise FilesError(f"{place}: files cannot be kept in {scheme}://; allowed: a directory, {', '.join(SCHEMES)}")
    options = {name.lower(): value for name, value in (storage_options or {}).items()}
    place = place.rstrip("/")
    _check_url(place)
    files = ObjectFiles(place, tuple(sorted(options.items())))
    files.check()
    return files


def _check_url(url: str) -> None:
    """Refuses URLs that obstore, deltalake and pyiceberg interpret differently."""
    host, *segments = url.partition("://")[2].split("/")
    user, has_user, _ = host.rpartition("@")
    if has_user and ":" in user:
        # The URL is shown in errors, and stored in Iceberg's tables.
        raise FilesError("the URL of an object store has no password in it; give it as a storage option")
    for refused in "?#%":
        if refused in url:
            raise FilesError(f"{url}: the URL of an object store has no {refused!r} in it")
    if not url.isprintable() or any(segment in ("", ".", "..") for segment in segments):
        raise FilesError(
            f"{url!r}: the URL of an object store has no part that is empty, '.' or '..', and no control codes"
        )


# -- a directory ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalFiles(Files):
    """A directory of a file system that has hard links and locks."""

    directory: str
    disk: FileSystem = field(default_factory=SystemFileSystem, repr=False, compare=False)

    @property
    def place(self) -> str:
        return self.directory

    @property
    def is_locked(self) -> bool:
        return True

    @contextmanager
    def adding(self, *directories: str) -> Iterator[None]:
        for each in directories:
            self.disk.make_durable_directories(self.address(each))
        try:
            lock = self.disk.lock(self.address(_LOCK))
        except BlockingIOError:
            raise FilesError(f"another program adds to {self.directory} at this moment") from None
        try:
            yield
        finally:
            lock.close()

    def paths(self, directory: str, after: str = "") -> list[str]:
        found = []
        for parent, _, names in os.walk(self.address(directory)):
            below = os.path.relpath(parent, self.directory)
            found += [path for name in names if (path := f"{below}/{name}") > after]
        return sorted(found)

    def read(self, path: str) -> bytes:
        return self.disk.read_file(self.address(path))

    def create(self, path: str, content: bytes) -> bool:
        def fill(sink: Any) -> bool:
            sink.write(content)
            return True

        return self._write(self.address(path), fill)

    def write(self, stem: str, fill: Callable[[Any], bool]) -> None:
        path = self.address(stem + _SUFFIX)
        self.disk.make_durable_directories(os.path.dirname(path))
        self._write(path, fill)

    def _write(self, path: str, fill: Callable[[Any], bool]) -> bool:
        # The random name ensures that no two attempts write to the same file, not even on two machines.
        temporary = f"{path}.{SystemEnvironment().random_uuid().hex}{_TEMPORARY}"
        with pa.OSFile(temporary, "wb") as sink:
            is_wanted = fill(sink)
        made = False
        if is_wanted:
            written = self.disk.open(temporary)
            written.sync()
            written.close()
            with suppress(FileExistsError):
                os.link(temporary, path)
                made = True
        self.disk.remove(temporary)
        if made:
            self.disk.sync_directory(os.path.dirname(path))
        return made

    def find(self, stem: str) -> str | None:
        path = self.address(stem + _SUFFIX)
        if not os.path.exists(path):
            return None
        # The task that gave the file its name may have died before the name was on disk.
        self.disk.sync_directory(os.path.dirname(path))
        return stem + _SUFFIX

    def open(self, path: str) -> str:
        return self.address(path)

    def status(self, path: str) -> FileStatus:
        return FileStatus(self.disk.size(self.address(path)), self.disk.modified_time_ms(self.address(path)))

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.disk.remove(self.address(path))


# -- an object store --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectFiles(Files):
    """A prefix in an object store that can refuse to replace an object (conditional puts)."""

    url: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def place(self) -> str:
        return self.url

    @property
    def is_locked(self) -> bool:
        return False

    @property
    def storage_options(self) -> dict[str, str] | None:
        return dict(self.options)

    def reason(self, error: BaseException) -> str:
        text = str(error)
        for name, value in self.options:
            if value and any(word in name for word in _SECRET):
                text = text.replace(value, "[hidden]")
        return text

    def check(self) -> None:
        """Raises FilesError when obstore is not installed, or does not accept the URL or an option."""
        try:
            import obstore  # noqa: F401
        except ImportError as error:
            raise FilesError(
                f"object stores need obstore ({error}); install it with pip install 'klamm[objects]'"
            ) from None
        with self._files_errors(""):
            _ = self._store

    @contextmanager
    def adding(self, *directories: str) -> Iterator[None]:
        from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError

        refused = f"{self.url}: this store does not refuse to replace an object (If-None-Match)"
        with self._files_errors(_PROBE):
            for _ in range(2):
                try:
                    self._put(_PROBE, b"It shows that this store does not replace an object.\n")
                except AlreadyExistsError:
                    break
                except FileNotFoundError:
                    raise FilesError(f"{self.url}: the store has no such bucket or container") from None
                except BaseError as error:
                    if isinstance(error, NotSupportedError) or "501 Not Implemented" in str(error):
                        raise FilesError(f"{refused}: {self._line(error)}") from None
                    raise
            else:
                raise FilesError(f"{refused}, so of two programs one could replace what the other has written")
        yield

    def paths(self, directory: str, after: str = "") -> list[str]:
        import obstore

        def ask() -> list[str]:
            pages = obstore.list(self._store, directory, offset=after or None)
            return sorted(found["path"] for page in pages for found in page)

        return self._read(directory, ask)

    def read(self, path: str) -> bytes:
        import obstore

        return self._read(path, lambda: bytes(obstore.get(self._store, path).bytes()))

    def create(self, path: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, BaseError

        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._put(path, content)
                return True
            except AlreadyExistsError as error:
                failure = error
            except BaseError as error:
                # The object may exist: perhaps only the answer was lost.
                failure = error
            with suppress(FileNotFoundError):
                return self.read(path) == content
            if not isinstance(failure, AlreadyExistsError):
                break
            # S3 also reports this while another request for the path is undecided (409 ConditionalRequestConflict).
        with self._files_errors(path):
            assert failure is not None
            raise failure

    def write(self, stem: str, fill: Callable[[Any], bool]) -> None:
        import obstore
        from obstore.exceptions import BaseError

        path = f"{stem}/{SystemEnvironment().random_uuid().hex}{_SUFFIX}"
        with self._files_errors(path):
            try:
                # An exception in this context makes the store discard the parts.
                with obstore.open_writer(
                    self._store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
                ) as writer:
                    if not fill(_Sink(writer)):
                        raise _NotWantedError
            except _NotWantedError:
                pass
            except (BaseError, OSError):
                # If the answer to the last request was lost, the retry fails, because the upload has ended. If the
                # object exists, it is complete and of this attempt, because no other attempt uses its name.
                if path not in self.paths(stem):
                    raise

    def find(self, stem: str) -> str | None:
        return next(iter(self.paths(stem)), None)

    def open(self, path: str) -> Any:
        return _Source(self, path, self.status(path).size_bytes)

    def status(self, path: str) -> FileStatus:
        import obstore

        found = self._read(path, lambda: obstore.head(self._store, path))
        return FileStatus(found["size"], round(found["last_modified"].timestamp() * 1000))

    def remove(self, path: str) -> None:
        import obstore

        with self._files_errors(path), suppress(FileNotFoundError):
            obstore.delete(self._store, path)

    def read_part(self, path: str, start: int, length: int) -> bytes:
        import obstore

        return self._read(path, lambda: bytes(obstore.get_range(self._store, path, start=start, length=length)))

    @property
    def _store(self) -> "ObjectStore":
        return _store(self.url, self.options)

    def _put(self, path: str, content: bytes) -> None:
        import obstore

        obstore.put(self._store, path, content, mode="create")

    def _read(self, path: str, ask: Callable[[], T]) -> T:
        """The answer to a read-only request. obstore does not retry a request whose answer was cut off."""
        from obstore.exceptions import GenericError

        with self._files_errors(path):
            for _ in range(_READ_ATTEMPTS - 1):
                with suppress(GenericError):
                    return ask()
            return ask()

    @contextmanager
    def _files_errors(self, path: str) -> Iterator[None]:
        """Converts errors of obstore to FilesError with one line, without secrets. Keeps FileNotFoundError."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.address(path)}: {self._line(error)}") from None
        except (BaseError, OSError) as error:
            raise FilesError(f"{self.address(path)}: {self._line(error)}") from None

    def _line(self, error: Exception) -> str:
        """The first line of the error. The others are internals of obstore."""
        return self.reason(error).partition("\n")[0]


class _NotWantedError(Exception):
    pass


@cache
def _store(url: str, options: tuple[tuple[str, str], ...]) -> "ObjectStore":
    """The store, cached so that a process reuses its connections in the next task."""
    from obstore.store import from_url

    client = {name: value for name, value in options if name in _CLIENT_OPTIONS}
    config = {name: value for name, value in options if name not in _CLIENT_OPTIONS}
    # obstore's types list the names of all options.
    return from_url(url, config=config or None, client_options=client or None)  # type: ignore[arg-type]


class _Sink(io.RawIOBase):
    """The writer of obstore, as a binary file for pyarrow."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self._writer.write(data))


class _Source(io.RawIOBase):
    """A finished object as a binary file for pyarrow. Each read is a request."""

    def __init__(self, files: ObjectFiles, path: str, size_bytes: int) -> None:
        self._files, self._path, self._size, self._position = files, path, size_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        wanted = left if size < 0 else min(size, left)
        data = self._files.read_part(self._path, self._position, wanted) if wanted else b""
        self._position += len(data)
        return data
