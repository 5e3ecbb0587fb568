"""The options that Spark gives the data source: which options are the user's, and how a table of a catalog keeps them.

`CREATE TABLE ... USING klamm OPTIONS (...)` gives the options to the data source once, among the table's properties. A
query of the table does not get them, but gets the columns from the catalog. So a column keeps the options in its
metadata.

What must stay true:
- A column's metadata has no secrets: the metadata goes where the rows go, for example into Parquet files.
- Only queries that do not name a cluster get the options of a column. Writers never get them: otherwise rows that were
  read from one table would be written back to it, and not to the table that INSERT names.

Source: org.apache.spark.sql.connector.catalog.TableCatalog, V2SessionCatalog; DataFrameReader, DataStreamWriter.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

TABLE_PREFIX = "option."
"""Spark gives a new table's options twice, with and without this prefix, together with the table's properties."""

METADATA_KEY = "klamm.options"

SERVERS = "kafka.bootstrap.servers"

# The options that Spark adds: properties of tables, the argument of load(), save() or start(), and those of
# DataStreamWriter.
_PROPERTIES = frozenset(
    {
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "owner",
        "provider",
        "serialization.format",
    }
)
# A query's option replaces all options of its table that set the same in another way.
_ALTERNATIVES = (
    frozenset({"assign", "subscribe", "subscribepattern"}),
    frozenset({"startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp"}),
    frozenset({"endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp"}),
)
_ARGUMENTS = frozenset({"path", "paths", "queryname"})
_SECRET_NAME = re.compile(r"password|secret|jaas|credential|user\.info|keystore\.key|auth\.token")
_SECRET_VALUE = re.compile(r"://([^/]*@|.*\?)|PRIVATE KEY")


def is_of_table(options: Mapping[str, str]) -> bool:
    """Whether a table with these options is being created."""
    return any(name.lower() == "provider" for name in options)


def options_of_user(options: Mapping[str, str]) -> dict[str, str]:
    """The options that the user has given, with names in lower case."""
    given = {name.lower(): value for name, value in options.items()}
    if is_of_table(given):
        own = {name.removeprefix(TABLE_PREFIX): text for name, text in given.items() if name.startswith(TABLE_PREFIX)}
        given = own or {name: value for name, value in given.items() if name not in _PROPERTIES}
    return {name: value for name, value in given.items() if name not in _ARGUMENTS}


def secret_option(options: Mapping[str, str]) -> str | None:
    """The name of an option that may hold a secret, if there is one."""
    return next(
        (name for name, value in sorted(options.items()) if _SECRET_NAME.search(name) or _SECRET_VALUE.search(value)),
        None,
    )


def metadata_of(options: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of a column with these options, which must have no secret."""
    return {METADATA_KEY: json.dumps(dict(sorted(options.items())))}


def with_options_of_table(options: Mapping[str, str], columns: Mapping[str, Mapping[str, Any]]) -> Mapping[str, str]:
    """The options of a table and of a query of it; the query's come first. `columns` has the metadata of each
    column."""
    given = options_of_user(options)
    if SERVERS in given:
        return options
    for metadata in columns.values():
        if METADATA_KEY in metadata:
            replaced = {name for names in _ALTERNATIVES if names & given.keys() for name in names}
            of_table = json.loads(metadata[METADATA_KEY])
            return {**{name: text for name, text in of_table.items() if name not in replaced}, **given}
    return options
