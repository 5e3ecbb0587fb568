"""A program: prints how many opcodes a broker executes for a produce of one 100-byte record."""

import asyncio
import sys
from pathlib import Path

from support.one_broker import batch, running
from support.opcodes import counted_steps

# A segment or a slice may end in one of them.
TRIALS = 5


async def main(directory: Path) -> None:
    async with running(directory) as (_, client):
        await client.create_topic("t", 1)
        first = bytes(batch(bytes(100)))  # all have its timestamp: a later one is noted in the segment
        opcodes = []
        for _ in range(TRIALS):
            await client.produce("t", 0, bytearray(first), acks=1)
            with counted_steps() as steps:
                await client.produce("t", 0, bytearray(first), acks=1)
            opcodes.append(steps.opcodes)
    print(min(opcodes))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
