"""/config: dynamic configurations and the notifications of their change. Pure.

Kafka's classes: ConfigEntityZNode, ConfigEntityChangeNotificationSequenceZNode, DynamicConfigManager. An *entity path*
is the path below /config/: `topics/T`, `brokers/1`, `brokers/<default>`, `users/U/clients/C`.
"""

import base64
from collections.abc import Mapping
from urllib.parse import quote, unquote

from klamm.base import json_bytes
from klamm.net.scram import ScramCredential
from klamm.znodes.fields import Fields

CONFIG_PATH = "/config"
DEFAULT_ENTITY = "<default>"
CONFIG_CHANGES_PATH = "/config/changes"
CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES_PATH}/config_change_"


def config_path(entity_path: str) -> str:
    return f"{CONFIG_PATH}/{entity_path}"


def config_change_path(name: str) -> str:
    return f"{CONFIG_CHANGES_PATH}/{name}"


def topic_entity(topic: str) -> str:
    return f"topics/{topic}"


def broker_entity(broker_id: int | None) -> str:
    """The entity path of a broker; None stands for the cluster's default."""
    return f"brokers/{DEFAULT_ENTITY if broker_id is None else broker_id}"


def client_entity(client_id: str | None) -> str:
    """The entity path of a client, or of a client below a user; None stands for the default."""
    return f"clients/{DEFAULT_ENTITY if client_id is None else sanitize(client_id)}"


def user_entity(user: str | None) -> str:
    """The entity path of a user; None stands for the default."""
    return f"users/{DEFAULT_ENTITY if user is None else sanitize(user)}"


def ip_entity(ip: str | None) -> str:
    """The entity path of an IP address, which Kafka's brokers read unencoded; None stands for the default."""
    return f"ips/{DEFAULT_ENTITY if ip is None else ip}"


def sanitize(name: str) -> str:
    """The name of a user or client in a path (Kafka's Sanitizer): percent-encoded UTF-8."""
    return quote(name, safe="").replace("~", "%7E")


def desanitize(name: str) -> str:
    return unquote(name)


def encode_scram_credential(credential: ScramCredential) -> str:
    """A user's config `SCRAM-SHA-256` or `SCRAM-SHA-512`."""

    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return (
        f"salt={text(credential.salt)},stored_key={text(credential.stored_key)}"
        f",server_key={text(credential.server_key)},iterations={credential.iterations}"
    )


def encode_config(config: Mapping[str, str]) -> bytes:
    return json_bytes.encode({"version": 1, "config": dict(config)})


def decode_config(entity_path: str, data: bytes) -> dict[str, str]:
    """An empty znode is an empty configuration. Raises ZnodeError for anything that Kafka does not write."""
    if not data:
        return {}
    config = Fields.parse(config_path(entity_path), data).nested("config")
    return {key: config.text(key) for key in config.values}


def encode_config_change(entity_path: str) -> bytes:
    return json_bytes.encode({"version": 2, "entity_path": entity_path})


def decode_config_change(name: str, data: bytes) -> str:
    """The entity path in the notification `name`. Version 1 has only topics and clients."""
    fields = Fields.parse(config_change_path(name), data)
    if fields.version() > 1:
        entity_path = fields.text("entity_path")
        if not entity_path.strip("/"):
            raise fields.problem("entity_path", "is empty")
        return entity_path
    entity_type = fields.text("entity_type")
    if entity_type not in ("topics", "clients"):
        raise fields.problem("entity_type", f"is {entity_type!r}; allowed in version 1 are topics and clients")
    return f"{entity_type}/{fields.text('entity_name')}"
