"""`/api/records?topic=&partition=`: records of a partition, forward or backward from an offset or a time.

| parameter       | what                                                                                |
|-----------------|-------------------------------------------------------------------------------------|
| offset=N        | from this offset on                                                                 |
| before=N        | the last records before this offset                                                 |
| timestamp=MS    | from the first record at or after this time on, in milliseconds since 1970          |
| none of these   | the last records                                                                    |
| limit=N         | how many, 50 if not given                                                           |
| whole=1         | one record, its key, value and headers up to a megabyte each                        |
"""

from dataclasses import asdict
from typing import Final

from klamm.base.visible import visible
from klamm.client.consumer.offsets import list_offsets
from klamm.client.fan_out import checked
from klamm.cockpit.browsing import MAX_RECORDS, Page, Reader
from klamm.cockpit.page_api import (
    PATIENCE,
    BadRequest,
    Cockpit,
    json_response,
    live_client,
    number,
    partition,
    with_errors,
)
from klamm.cockpit.value_texts import SHOWN_BYTES, WHOLE_BYTES
from klamm.net.http import Answer, Handler, Request
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, UNKNOWN_OFFSET, TopicPartition

LIMIT: Final = 50


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    async def records(request: Request) -> Answer:
        client, key = live_client(cockpit), partition(request)
        is_whole = "whole" in request.parameters
        limit = 1 if is_whole else number(request, "limit", LIMIT, least=1, most=MAX_RECORDS)
        if sum(name in request.parameters for name in ("offset", "before", "timestamp")) > 1:
            raise BadRequest("Give one of offset, before and timestamp.")
        first = checked((await list_offsets(client, {key: EARLIEST_TIMESTAMP}, retry=PATIENCE))[key]).offset
        end = checked((await list_offsets(client, {key: LATEST_TIMESTAMP}, retry=PATIENCE))[key]).offset
        reader = Reader(client, key, WHOLE_BYTES if is_whole else SHOWN_BYTES)
        if "timestamp" in request.parameters:
            at = {key: number(request, "timestamp")}
            found = checked((await list_offsets(client, at, retry=PATIENCE))[key]).offset
            page = await reader.forward(end if found == UNKNOWN_OFFSET else found, limit)
        elif "offset" in request.parameters:
            page = await reader.forward(_in_log(number(request, "offset"), first, end, key), limit)
        else:
            before = number(request, "before", end)
            page = await reader.backward(_in_log(before, first, end, key), limit, first)
        return json_response(_value(key, page, first, end))

    return {"/api/records": with_errors(records)}


def _in_log(offset: int, first: int, end: int, key: TopicPartition) -> int:
    if not first <= offset <= end:
        raise BadRequest(f"Offset {offset} is not in the log of {key}, which has {first} to {end}.")
    return offset


def _value(key: TopicPartition, page: Page, first: int, end: int) -> dict[str, object]:
    return {
        **asdict(page),
        "topic": key.topic,
        "topic_shown": visible(key.topic),
        "partition": key.partition,
        "log_start_offset": first,
        "end_offset": end,
    }
