"""Record batches, message format v2. `record_batch` keeps the records as opaque bytes behind the header, as brokers do;
`records` decodes them for the few callers that need them.
"""
