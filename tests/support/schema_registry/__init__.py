"""A Schema Registry for tests, written from the public API reference: subjects, versions, ids, compatibility.

What must stay true: Confluent's own client, serializers and deserializers work against it
(`tests/spark/test_registry_server.py`). No real registry was tried.

What it leaves out: schemas of Protobuf as text (only serialized descriptors, as Confluent's Python serializer sends
them), metadata, rule sets, associations, exporters and modes other than READWRITE and READONLY.
"""

from support.schema_registry.server import SchemaRegistry as SchemaRegistry
