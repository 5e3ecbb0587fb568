"""`/api/why?topic=&partition=`: the reasons for a partition's state, remedies, and the decisions about it in order."""

from klamm.cockpit.page_api import Cockpit, json_response, live_client, moving_of, partition, with_errors
from klamm.cockpit.partition_facts import Reach, read_partition, read_story
from klamm.diagnosis.partition_conditions import explain
from klamm.net.http import Answer, Handler, Request


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    reach = Reach(cockpit.brokers_options, cockpit.zookeeper_options)

    async def why(request: Request) -> Answer:
        client, key, znodes = live_client(cockpit), partition(request), cockpit.source.znodes
        now = await cockpit.source.now()
        records = await cockpit.records.read(znodes, cockpit.source.followed())
        facts = await read_partition(client, znodes, now, key, reach, await moving_of(cockpit), records)
        view = facts.view
        told = await read_story(znodes, facts, records, cockpit.state_change_logs)
        return json_response(
            {
                "topic": key.topic,
                "partition": key.partition,
                "leader": view.leader,
                "leader_epoch": view.leader_epoch,
                "isr": view.isr,
                "replicas_assigned": view.replicas,
                "adding": view.adding,
                "removing": view.removing,
                **explain(facts).value(),
                "story": told.value(),
            }
        )

    return {"/api/why": with_errors(why)}
