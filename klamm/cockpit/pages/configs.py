"""`/api/configs?topic=` or `?broker=`: configurations with their sources and synonyms.

Brokers never send the value of a sensitive configuration.
"""

from typing import Any

from klamm.base.visible import visible
from klamm.client.admin.configs import ConfigEntry, ConfigResource, describe_configs
from klamm.client.fan_out import checked
from klamm.cockpit.page_api import (
    MAX_INT32,
    PATIENCE,
    BadRequest,
    Cockpit,
    json_response,
    live_client,
    number,
    with_errors,
)
from klamm.net.http import Answer, Handler, Request
from klamm.protocol.vocabulary import ConfigResourceType


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    async def configs(request: Request) -> Answer:
        client, given = live_client(cockpit), request.parameters
        if ("topic" in given) == ("broker" in given):
            raise BadRequest("Give one of topic and broker.")
        if "topic" in given:
            resource = ConfigResource(ConfigResourceType.TOPIC, given["topic"])
        else:
            resource = ConfigResource(ConfigResourceType.BROKER, str(number(request, "broker", most=MAX_INT32)))
        found = await describe_configs(client, [resource], include_synonyms=True, retry=PATIENCE)
        entries = checked(found[resource])
        return json_response({"of": list(resource), "configs": [_value(each) for each in entries.values()]})

    return {"/api/configs": with_errors(configs)}


def _value(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": visible(entry.name),
        "value": None if entry.value is None else visible(entry.value),
        "source": entry.source.name,
        "is_read_only": entry.is_read_only,
        "is_sensitive": entry.is_sensitive,
        "synonyms": [
            {
                "name": visible(each.name),
                "value": None if each.value is None else visible(each.value),
                "source": each.source.name,
            }
            for each in entry.synonyms
        ],
    }
