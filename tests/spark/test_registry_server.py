"""The test registry is accepted because Confluent's own client, serializers and deserializers work against it."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from support.certificates import Authority
from support.present import present
from support.schema_registry import SchemaRegistry
from support.schema_registry.messages import message_classes, proto_file

VALUE = SerializationContext("orders", MessageField.VALUE)
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
WITH_NOTE = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
WITH_PRICE = {**ORDER, "fields": [*ORDER["fields"], {"name": "price", "type": "double"}]}
# Confluent's serializer asks for associations unless it is told how subjects are named.
BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running


@pytest.fixture
def client(registry: SchemaRegistry) -> SchemaRegistryClient:
    return client_of(registry)


def client_of(registry: SchemaRegistry, **more: Any) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url, "max.retries": 0, **more})


def avro(schema: Any, *references: SchemaReference) -> Schema:
    return Schema(json.dumps(schema), "AVRO", list(references))


def code(function: Any, *arguments: Any, **more: Any) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        function(*arguments, **more)
    return caught.value.http_status_code, caught.value.error_code


def test_equal_schemas_have_one_id_in_all_subjects(client: SchemaRegistryClient) -> None:
    first = client.register_schema("a", avro(ORDER))
    assert client_of_same(client).register_schema("b", avro(ORDER)) == first
    assert client.register_schema("a", avro(WITH_NOTE)) == first + 1
    assert client.get_versions("a") == [1, 2]
    assert client.get_subjects() == ["a", "b"]
    assert client.get_latest_version("a").schema_id == first + 1
    assert json.loads(present(client.get_schema(first).schema_str)) == ORDER
    assert client.lookup_schema("b", avro(ORDER)).version == 1
    assert [(one.subject, one.version) for one in client.get_schema_versions(first)] == [("a", 1), ("b", 1)]


def client_of_same(client: SchemaRegistryClient) -> SchemaRegistryClient:
    return SchemaRegistryClient(client.config())


def test_what_is_missing_or_invalid_has_the_codes_of_the_reference(client: SchemaRegistryClient) -> None:
    client.register_schema("a", avro(ORDER))
    assert code(client.get_latest_version, "b") == (404, 40401)
    assert code(client.get_version, "a", 9) == (404, 40402)
    assert code(client.get_schema, 999) == (404, 40403)
    assert code(client.lookup_schema, "a", avro(WITH_NOTE)) == (404, 40403)
    assert code(client.lookup_schema, "b", avro(ORDER)) == (404, 40401)
    assert code(client.register_schema, "a", Schema('{"type": "recor"}', "AVRO")) == (422, 42201)
    assert code(client.register_schema, "a", Schema("{}", "XML")) == (422, 42201)
    assert code(client.get_version, "a", "two") == (422, 42202)
    assert code(client.set_compatibility, "a", "SIDEWAYS") == (422, 42203)
    assert code(client.update_mode, "a", "WRITEONLY") == (422, 42204)
    assert code(client.register_schema, "a\x01", avro(ORDER)) == (422, 42208)
    assert code(client.delete_subject, "b") == (404, 40401)


@pytest.mark.parametrize(
    ("level", "steps"),
    [
        ("BACKWARD", [(WITH_NOTE, True), (WITH_PRICE, False)]),
        ("FORWARD", [(WITH_PRICE, True)]),
        ("FULL", [(WITH_NOTE, True), (WITH_PRICE, False)]),
        ("NONE", [(WITH_PRICE, True), ("string", True)]),
    ],
)
def test_an_incompatible_schema_is_refused(client: SchemaRegistryClient, level: str, steps: list[Any]) -> None:
    client.register_schema("a", avro(ORDER))
    client.set_compatibility("a", level)
    for schema, allowed in steps:
        assert client.test_compatibility("a", avro(schema)) is allowed
        if allowed:
            client.register_schema("a", avro(schema))
        else:
            assert code(client.register_schema, "a", avro(schema)) == (409, 40901)


def test_transitive_levels_look_at_all_versions(client: SchemaRegistryClient) -> None:
    def with_field(name: str, kind: str) -> Schema:
        return avro({"type": "record", "name": "R", "fields": [{"name": name, "type": kind, "default": 1}]})

    client.set_compatibility("a", "BACKWARD")
    # The field x goes and comes back as another type: only the oldest version is in the way.
    client.register_schema("a", avro({"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}))
    client.register_schema("a", with_field("y", "int"))
    assert client.test_compatibility("a", with_field("x", "int"))
    client.set_compatibility("a", "BACKWARD_TRANSITIVE")
    assert not client.test_compatibility_all_versions("a", with_field("x", "int"))
    assert code(client.register_schema, "a", with_field("x", "int")) == (409, 40901)


def fields(**kinds: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}


@pytest.mark.parametrize(
    ("old", "new", "compatible"),
    [
        (fields(x="int"), fields(x="long"), True),
        (fields(x="long"), fields(x="int"), False),
        (fields(x="string"), fields(x="bytes"), True),
        (fields(x="int"), fields(x=["null", "int"]), True),
        (fields(x=["null", "int"]), fields(x="int"), False),
        (fields(x="int", y="int"), fields(x="int"), True),
        (fields(x={"type": "array", "items": "int"}), fields(x={"type": "array", "items": "double"}), True),
        (fields(x={"type": "map", "values": "int"}), fields(x={"type": "map", "values": "string"}), False),
        (
            fields(x={"type": "enum", "name": "E", "symbols": ["A", "B"]}),
            fields(x={"type": "enum", "name": "E", "symbols": ["A"]}),
            False,
        ),
        (
            fields(x={"type": "fixed", "name": "F", "size": 2}),
            fields(x={"type": "fixed", "name": "F", "size": 3}),
            False,
        ),
        (fields(x="int"), {**fields(x="int"), "name": "Other"}, False),
        (fields(x="int"), {**fields(x="int"), "name": "Other", "aliases": ["R"]}, True),
    ],
)
def test_backward_compatibility_of_avro(
    client: SchemaRegistryClient, old: dict[str, Any], new: dict[str, Any], compatible: bool
) -> None:
    client.register_schema("a", avro(old))
    assert client.test_compatibility("a", avro(new)) is compatible


def test_references_are_resolved_and_keep_their_schema_from_being_deleted(client: SchemaRegistryClient) -> None:
    client.register_schema("address", avro({"type": "record", "name": "Address", "fields": []}))
    person = {"type": "record", "name": "Person", "fields": [{"name": "home", "type": "Address"}]}
    assert code(client.register_schema, "person", avro(person)) == (422, 42201)
    reference = SchemaReference("Address", "address", 1)
    schema_id = client.register_schema("person", avro(person, reference))
    assert code(client.register_schema, "p", avro(person, SchemaReference("Address", "address", 2))) == (422, 42201)
    assert client.get_schema(schema_id).references == [reference]
    assert client.get_referenced_by("address", 1) == [schema_id]
    assert code(client.delete_version, "address", 1) == (422, 42206)


def test_deletion_is_soft_at_first(client: SchemaRegistryClient) -> None:
    schema_id = client.register_schema("a", avro(ORDER))
    client.register_schema("a", avro(WITH_NOTE))
    assert code(client.delete_version, "a", 1, True) == (404, 40407)
    assert code(client.delete_subject, "a", True) == (404, 40405)
    assert client.delete_version("a", 1) == 1
    assert client.get_versions("a") == [2]
    assert json.loads(present(client.get_schema(schema_id).schema_str)) == ORDER
    assert client.delete_subject("a") == [2]
    assert client.get_subjects() == []
    assert client.get_subjects(deleted=True) == ["a"]
    assert client.delete_subject("a", permanent=True) == [1, 2]
    assert client.get_subjects(deleted=True) == []
    # Versions are not given again.
    fresh = client_of_same(client)
    assert fresh.register_schema("a", avro(ORDER)) == schema_id
    assert fresh.get_latest_version("a").version == 3


def test_normalized_schemas_are_equal(client: SchemaRegistryClient) -> None:
    mixed = Schema('{"name": "Order", "fields": [{"type": "long", "name": "id"}], "type": "record"}', "AVRO")
    first = client.register_schema("a", mixed, normalize_schemas=True)
    assert client_of_same(client).register_schema("a", avro(ORDER), normalize_schemas=True) == first
    assert client_of_same(client).register_schema("a", avro(ORDER)) != first


def test_levels_and_modes_are_global_or_of_a_subject(client: SchemaRegistryClient) -> None:
    assert client.get_compatibility() == "BACKWARD"
    assert code(client.get_compatibility, "a") == (404, 40408)
    client.set_compatibility("a", "NONE")
    client.set_compatibility(level="FULL")
    assert (client.get_compatibility("a"), client.get_compatibility()) == ("NONE", "FULL")
    client.update_mode("a", "READONLY")
    assert client.get_mode("a") == "READONLY"
    assert code(client.register_schema, "a", avro(ORDER)) == (422, 42205)


def test_contexts_have_ids_of_their_own(client: SchemaRegistryClient) -> None:
    assert client.register_schema("a", avro(ORDER)) == 1
    assert client.register_schema(":.other:a", avro(WITH_NOTE)) == 1
    assert client.get_contexts() == [".", ".other"]
    assert json.loads(present(client.get_schema(1, subject_name=":.other:a").schema_str)) == WITH_NOTE


@pytest.mark.parametrize(
    ("credentials", "works"),
    [
        ({"basic.auth.user.info": "ann:secret"}, True),
        ({"basic.auth.user.info": "ann:wrong"}, False),
        (
            {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": "token",
                "bearer.auth.logical.cluster": "c",
                "bearer.auth.identity.pool.id": "p",
            },
            True,
        ),
        ({}, False),
    ],
)
def test_users_and_tokens(credentials: dict[str, str], works: bool) -> None:
    with SchemaRegistry(users={"ann": "secret"}, tokens=("token",)) as registry:
        client = client_of(registry, **credentials)
        if works:
            assert client.register_schema("a", avro(ORDER)) == 1
        else:
            assert code(client.register_schema, "a", avro(ORDER)) == (401, 401)


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.certificate("registry", "IP:127.0.0.1")
    (tmp_path / "registry.pem").write_text(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "registry.pem")
    with SchemaRegistry(tls=context) as registry:
        client = client_of(registry, **{"ssl.ca.location": str(authority.path)})
        assert client.register_schema("a", avro(ORDER)) == 1


def test_a_failure_is_repeated_by_the_client(registry: SchemaRegistry) -> None:
    registry.fail(503, times=2)
    client = client_of(registry, **{"max.retries": 2, "retries.wait.ms": 1})
    assert client.register_schema("a", avro(ORDER)) == 1
    assert len(registry.requests) == 3


# -- serializers and deserializers ------------------------------------------------------------------------------------


def test_the_avro_serializers(client: SchemaRegistryClient) -> None:
    serialize = AvroSerializer(client, json.dumps(WITH_NOTE), conf=BY_TOPIC)
    data = serialize({"id": 7, "note": "x"}, VALUE)
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    assert client.get_latest_version("orders-value").version == 1
    assert AvroDeserializer(client)(data, VALUE) == {"id": 7, "note": "x"}
    assert AvroDeserializer(client, json.dumps(ORDER))(data, VALUE) == {"id": 7}


def test_the_avro_serializers_with_associations_and_references(client: SchemaRegistryClient) -> None:
    client.register_schema("address", avro({**ORDER, "name": "Address"}))
    person = {"type": "record", "name": "Person", "fields": [{"name": "home", "type": "Address"}]}
    schema = avro(person, SchemaReference("Address", "address", 1))
    data = AvroSerializer(client, schema)({"home": {"id": 1}}, VALUE)
    assert AvroDeserializer(client)(data, VALUE) == {"home": {"id": 1}}


def test_the_json_serializers(client: SchemaRegistryClient) -> None:
    schema = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
    data = JSONSerializer(json.dumps(schema), client, conf=BY_TOPIC)({"id": 7}, VALUE)
    assert data == b'\x00\x00\x00\x00\x01{"id":7}'
    assert JSONDeserializer(None, schema_registry_client=client)(data, VALUE) == {"id": 7}


@pytest.mark.parametrize(
    ("old", "new", "compatible"),
    [
        ({"a": "string"}, {"a": "string"}, True),
        ({"a": "integer"}, {"a": "number"}, True),
        ({"a": "number"}, {"a": "integer"}, False),
        ({"a": "string"}, {"a": "string", "b": "string"}, False),
    ],
)
def test_backward_compatibility_of_json_schema(
    client: SchemaRegistryClient, old: dict[str, str], new: dict[str, str], compatible: bool
) -> None:
    def schema(kinds: dict[str, str]) -> Schema:
        properties = {name: {"type": kind} for name, kind in kinds.items()}
        return Schema(json.dumps({"type": "object", "properties": properties}), "JSON")

    client.register_schema("a", schema(old))
    assert client.test_compatibility("a", schema(new)) is compatible


def test_the_protobuf_serializers_with_an_imported_file_and_nested_messages(client: SchemaRegistryClient) -> None:
    common = proto_file("common.proto", "shop", {"Money": {"units": "int64"}})
    nested = {"Line": {"sku": "string"}, "lines": "repeated .shop.Order.Line", "total": ".shop.Money"}
    order = proto_file("order.proto", "shop", {"Other": {"x": "int32"}, "Order": nested}, imports=["common.proto"])
    classes = message_classes(common, order)
    first, line = classes["shop.Order"](lines=[{"sku": "a"}]), classes["shop.Order.Line"](sku="b")

    data = ProtobufSerializer(classes["shop.Order"], client, conf=BY_TOPIC)(first, VALUE)
    assert data[:7] == b"\x00\x00\x00\x00\x02\x02\x02"  # the array [1], of the length 1, as zigzag varints
    assert ProtobufDeserializer(classes["shop.Order"], {}, client)(data, VALUE) == first
    assert client.get_subjects() == ["common.proto", "orders-value"]

    data = ProtobufSerializer(classes["shop.Order.Line"], client, conf=BY_TOPIC)(line, VALUE)
    assert data[:8] == b"\x00\x00\x00\x00\x02\x04\x02\x00"
    assert ProtobufDeserializer(classes["shop.Order.Line"], {}, client)(data, VALUE) == line
