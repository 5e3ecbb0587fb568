"""The look for deleted topics lets others have the loop."""

import asyncio
from types import SimpleNamespace
from typing import Any

from klamm.broker.metadata_updates import TOPICS_PER_SLICE, ComparedState, MetadataUpdates


async def test_no_turn_of_the_loop_looks_at_all_partitions() -> None:
    in_turn = 0
    most = 0

    class Partition:
        topic = "t"

        @property
        def leader_epoch(self) -> int:
            nonlocal in_turn, most
            in_turn += 1
            most = max(most, in_turn)
            return 0

    def nothing_committed() -> Any:
        yield
        return {}

    asked: list[list[str]] = []

    async def existing_topics(names: list[str]) -> dict[str, None]:
        asked.append(names)
        return dict.fromkeys(names)

    async def sync() -> None:
        pass

    async def topic_deletions() -> list[str]:
        return []

    unused: Any = None
    store: Any = SimpleNamespace(sync=sync, topic_deletions=topic_deletions, existing_topics=existing_topics)
    updates = MetadataUpdates(
        SimpleNamespace(snapshot=SimpleNamespace(topics={}, topic_ids={})),  # type: ignore[arg-type]
        SimpleNamespace(partitions={("t", number): Partition() for number in range(5 * TOPICS_PER_SLICE)}),  # type: ignore[arg-type]
        SimpleNamespace(committed_partitions=nothing_committed),  # type: ignore[arg-type]
        unused,
        unused,
        unused,
        lambda: store,
        lambda error: None,
    )
    updates.look_for_deleted_topics(ComparedState.NAMES)
    for _ in range(100):
        in_turn = 0
        await asyncio.sleep(0)
    await updates.stop()
    assert asked == [["t"]]
    assert most <= TOPICS_PER_SLICE
