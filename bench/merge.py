"""klamm's `log merge` beside Kafka 2.8.2's StateChangeLogMerger, on the same state-change.log files, as ratios.

Kafka's tool knows only the form `[topic,partition]`, which brokers wrote before Kafka 1.0, so both tools get files in
that form; klamm also gets the same history in the form that Kafka 2.8 writes. Each of the brokers has one file of an
hour, whose lines are spread evenly; the lines are those of a failover: a controller's decisions and the brokers'
answers. What both tools write is shown to be the same, as a set of lines, before a rate counts.

| row       | what is merged                                              |
|-----------|-------------------------------------------------------------|
| all       | every line                                                  |
| topic     | the lines of one of the topics                              |
| partition | the lines of two partitions of that topic                   |
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sides import ROOT, java_command, kafka_jars

BROKERS = 3
TOPICS = 20
PARTITIONS = 50
CHOSEN = "orders-7"
SEED = 7
# Lines of one broker that are made at once.
BATCH = 20_000
HOUR_MS = 3_600_000


def bodies(broker: int, modern: bool) -> list[str]:
    """Lines without their times, which a file repeats."""
    chance = random.Random(SEED + broker)
    controller, writer = f"Controller id={broker} epoch=4", f"Broker id={broker}"
    made = []
    for number in range(BATCH):
        topic, partition = f"orders-{chance.randrange(TOPICS)}", chance.randrange(PARTITIONS)
        name = f"{topic}-{partition}" if modern else f"[{topic},{partition}]"
        leader, epoch = chance.randrange(BROKERS), chance.randrange(100)
        if number % 3 == 0:
            text = (
                f"INFO [{controller}] Changed partition {name} from OfflinePartition to OnlinePartition with state"
                f" LeaderAndIsr(leader={leader}, leaderEpoch={epoch}, isr=List({leader}), zkVersion={number})"
            )
        elif number % 3 == 1:
            text = (
                f"TRACE [{controller}] Changed state of replica {leader} for partition {name} from OnlineReplica to"
                " OfflineReplica"
            )
        else:
            text = (
                f"INFO [{writer}] Follower {name} starts at leader epoch {epoch} from offset {number} with high"
                f" watermark {number}. Previous leader epoch was {epoch - 1}."
            )
        made.append(f"] {text} (state.change.logger)\n")
    return made


def write_logs(directory: Path, size_mb: int, modern: bool) -> list[Path]:
    paths = []
    for broker in range(BROKERS):
        texts = bodies(broker, modern)
        size_bytes = sum(map(len, texts)) + BATCH * len("[yyyy-MM-dd HH:mm:ss,SSS")
        parts = max(1, size_mb * 1_000_000 // BROKERS // size_bytes)
        step_ms = HOUR_MS / (parts * BATCH)
        path = directory / f"state-change.log.{'new' if modern else 'old'}.{broker}"
        with path.open("w") as file:
            for part in range(parts):
                begin = part * BATCH
                file.writelines(stamp(int((begin + at) * step_ms)) + text for at, text in enumerate(texts))
        paths.append(path)
    return paths


def stamp(at_ms: int) -> str:
    second, millisecond = divmod(at_ms, 1000)
    return f"[2021-06-01 10:{second // 60:02}:{second % 60:02},{millisecond:03}"


def digest(path: Path) -> tuple[int, int]:
    """The number of lines, and a sum over them that does not depend on the order of lines of the same time."""
    count, total = 0, 0
    with path.open("rb") as file:
        for line in file:
            count += 1
            total ^= hash(line)
    return count, total


def seconds(command: list[str], output: Path) -> float:
    began = time.perf_counter()
    with output.open("wb") as file:
        subprocess.run(command, stdout=file, check=True, cwd=ROOT)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=1000, help="of all files of a form together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("all", "topic", "partition"), help="one of the rows")
    parser.add_argument("--directory", type=Path, help="where the files are made; a temporary directory by default")
    arguments = parser.parse_args()
    jars = kafka_jars()
    rows = {
        "all": [],
        "topic": ["--topic", CHOSEN],
        "partition": ["--topic", CHOSEN, "--partitions", "3,4"],
    }
    table = Table("merged", "klamm MB/s", "Kafka MB/s", "ratio", "klamm, form of 2.8, MB/s")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        old = write_logs(directory, arguments.size_mb, modern=False)
        new = write_logs(directory, arguments.size_mb, modern=True)
        size, new_size = (sum(path.stat().st_size for path in paths) / 1e6 for paths in (old, new))
        for row, options in rows.items():
            if arguments.only not in (None, row):
                continue
            logs = ["--logs", ",".join(map(str, old)), *options]
            ours = [sys.executable, "-m", "klamm", "log", "merge"]
            theirs = java_command(jars, "kafka.tools.StateChangeLogMerger", *logs, options=())
            modern = [*ours, "--logs", ",".join(map(str, new)), *options]
            best: dict[str, float] = {}
            for _ in range(arguments.rounds):
                for side, command in (("klamm", [*ours, *logs]), ("Kafka", theirs), ("modern", modern)):
                    took = seconds(command, directory / side)
                    best[side] = min(best.get(side, took), took)
            if digest(directory / "klamm") != digest(directory / "Kafka"):
                raise SystemExit(f"{row}: the two tools have not written the same lines")
            rate = {side: (new_size if side == "modern" else size) / took for side, took in best.items()}
            table.add_row(
                row,
                f"{rate['klamm']:.0f}",
                f"{rate['Kafka']:.0f}",
                f"{rate['klamm'] / rate['Kafka']:.2f}",
                f"{rate['modern']:.0f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
