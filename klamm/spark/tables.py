"""The options that Spark gives the data source: which of them are the user's, and how a table of a catalog keeps them.

`CREATE TABLE ... USING klamm OPTIONS (...)` gives them to the data source once, among properties of the table. A query
of the table gets none of them, but the columns as the catalog keeps them. So a column carries the options in its
metadata, from the one to the other.

What must stay true:
- No secret is in a column's metadata: it goes where the rows go, into Parquet files for example.
- Only queries that do not say which cluster to read get the options of a column, and no writer does: columns of rows
  that were read from one table would send them back there, not to the table that INSERT names.

Source: org.apache.spark.sql.connector.catalog.TableCatalog, V2SessionCatalog; DataFrameReader, DataStreamWriter.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

TABLE_PREFIX = "option."
"""Spark gives a new table's options under their names and under these, and the table's properties beside them."""

METADATA_KEY = "klamm.options"

SERVERS = "kafka.bootstrap.servers"

# What Spark adds: properties of tables, the argument of load(), save() or start(), and what DataStreamWriter keeps.
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
# A query's option takes the place of all options of its table that say the same in another way.
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
    """The metadata of a column that carries these options, which hold no secret."""
    return {METADATA_KEY: json.dumps(dict(sorted(options.items())))}


def with_options_of_table(options: Mapping[str, str], columns: Mapping[str, Mapping[str, Any]]) -> Mapping[str, str]:
    """A query's options, before which come those of its table; `columns` has the metadata of each."""
    given = options_of_user(options)
    if SERVERS in given:
        return options
    for metadata in columns.values():
        if METADATA_KEY in metadata:
            replaced = {name for names in _ALTERNATIVES if names & given.keys() for name in names}
            of_table = json.loads(metadata[METADATA_KEY])
            return {**{name: text for name, text in of_table.items() if name not in replaced}, **given}
    return options
