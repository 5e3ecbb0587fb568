"""Programs in Go that tests run, built once for each version of their source."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from support.oracles import CACHE, Unavailable


def built(source: Path, name: str) -> Path:
    """The program of a directory with go.mod, go.sum and main.go. Unavailable without Go."""
    digest = hashlib.sha256(b"".join((source / file).read_bytes() for file in ("go.mod", "go.sum", "main.go")))
    target = CACHE / f"{name}-{digest.hexdigest()[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        if shutil.which("go") is None:
            raise Unavailable(f"Go is not installed to build {name}")
        command = ["go", "build", "-trimpath", "-o", f"{target}.new", "."]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"{name} could not be built:\n{done.stderr[-2000:]}")
        os.rename(f"{target}.new", target)
    return target
