"""Compaction: a log keeps the last record of each key, and loses the older ones.

| module | what it decides or does |
|---|---|
| `cleaner` | the cleaning itself: reads the dirty part into an offset map, then writes every segment anew |
| `grouping` | which segments become one |
| `offset_map` | the last offset of each key, in bounded memory |
| `cleaned_transactions` | which batches are aborted, and which markers may leave the log |
| `kept_records` | which records of one batch stay, and the batch that holds only those |
| `cleaned_segment` | the `.cleaned` files of one new segment, with their indexes |
| `batch_reader` | reads a segment in windows of whole batches |
| `plain_kernel`, `compiled_kernel` | the loops over records: in Python, and compiled for the worker process |
| `compiled_checksum` | CRC-32C for the compiled loops |

`storage/log` has the log's part: `job` has the input and the result of a cleaning, `cleaning` replaces the old segments
by the finished ones, `swap` has the renames, and `log_loader` finishes an interrupted swap.

Source: kafka.log.LogCleaner, SkimpyOffsetMap, org.apache.kafka.common.record.MemoryRecords (filterTo).
"""
