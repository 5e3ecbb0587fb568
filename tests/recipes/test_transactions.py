"""Troubles of transactions. docs/recipes.md has each recipe with what it is about."""

import pytest

from klamm.testing import Cluster
from klamm.testing.recipes import Client, Failed


def test_a_zombie_is_fenced(c: Cluster, client: Client, topic: str) -> None:
    """A zombie is fenced

    Two instances of an application have the same `transactional.id`, because the first one was taken for dead. What the
    first one has sent in its open transaction is never seen, and it can commit nothing.
    """
    zombie = client.producer(transactional_id=topic)
    zombie.begin()
    zombie.write(topic, "of the zombie")
    successor = client.producer(transactional_id=topic)
    with pytest.raises(Failed) as fenced:
        zombie.commit()
    assert fenced.value.error == "FENCED"
    successor.begin()
    successor.write(topic, "of the successor")
    successor.commit()
    values = client.read(topic, until="of the successor", isolation_level="read_committed")
    assert values == ["of the successor"]


def test_a_producer_dies_in_its_transaction(c: Cluster, client: Client, topic: str) -> None:
    """A producer dies in its transaction

    Records of an open transaction are in the log when their producer dies. Readers of committed records wait for the
    transaction's end, which comes when the application starts again with the same `transactional.id`.
    """
    reader = client.consumer(topic, isolation_level="read_committed")
    died = client.producer(transactional_id=topic)
    died.begin()
    died.write(topic, "half done")
    client.producer().write(topic, "of another producer")
    again = client.producer(transactional_id=topic)
    assert reader.read(1) == ["of another producer"]
    again.begin()
    again.write(topic, "done")
    again.commit()
    assert reader.read(1) == ["done"]


def test_the_answer_to_a_commit_is_lost(c: Cluster, client: Client, topic: str) -> None:
    """The answer to a commit is lost

    The coordinator has written that the transaction is committed, and the connection ends before its answer arrives.
    The producer asks again, and is told so. It neither aborts the transaction nor sends its records once more.
    """
    producer = client.producer(transactional_id=topic)
    lost = c.disconnect(api="EndTxn", transactional_id=topic, after=True).once()
    producer.begin()
    producer.write(topic, "one", "two")
    producer.commit()
    assert lost.hits == 1
    assert client.read(topic, until="two", isolation_level="read_committed") == ["one", "two"]


def test_a_transaction_takes_too_long(c: Cluster, client: Client, topic: str) -> None:
    """A transaction takes too long

    The coordinator aborts a transaction that is open for longer than `transaction.timeout.ms`, here at once, so that
    readers of committed records need not wait for it. Its producer learns at its commit that it is fenced.
    """
    producer = client.producer(transactional_id=topic)
    producer.begin()
    producer.write(topic, "too late")
    c.expire_transaction(topic)
    with pytest.raises(Failed) as fenced:
        producer.commit()
    assert fenced.value.error == "FENCED"
    client.producer().write(topic, "of another producer")
    values = client.read(topic, until="of another producer", isolation_level="read_committed")
    assert values == ["of another producer"]
