"""The asking side of fetch sessions: what each request says, and that the leader ends up with what is wanted."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.broker.requests.fetch_session import FetchSessionCache
from klamm.protocol.apis.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.replication.fetcher.fetch_session_client import FetchSessionClient
from support.fetch_messages import fetch_response, forgotten_of, to_fetch, wanted_of


def entry(partition: int, offset: int = 0, epoch: int = 1) -> FetchPartition:
    return to_fetch(partition, offset, 1000, epoch=epoch, last_epoch=0, log_start_offset=0)


def asked(session: FetchSessionClient) -> FetchRequest:
    request = FetchRequest()
    session.fill(request)
    return request


def answer(session_id: int, *partitions: tuple[str, int], error: int = 0, throttle_time_ms: int = 0) -> FetchResponse:
    topics: dict[str, list[PartitionData]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(PartitionData(partition_index=partition))
    return fetch_response(*topics.items(), throttle_time_ms=throttle_time_ms, error_code=error, session_id=session_id)


def begun(*partitions: tuple[str, int], session_id: int = 7) -> FetchSessionClient:
    """A session that the leader has created with these partitions."""
    session = FetchSessionClient()
    for topic, partition in partitions:
        session.want((topic, partition), entry(partition))
    asked(session)
    assert session.accept(answer(session_id, *partitions))
    return session


def test_the_first_request_names_everything_by_topic() -> None:
    session = FetchSessionClient()
    assert session.is_empty
    session.want(("a", 0), entry(0))
    session.want(("b", 0), entry(0))
    session.want(("a", 3), entry(3))
    request = asked(session)
    assert not session.is_empty
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert wanted_of(request) == [("a", [entry(0), entry(3)]), ("b", [entry(0)])]
    assert forgotten_of(request) == []


def test_later_requests_name_only_what_has_changed() -> None:
    session = begun(("a", 0), ("a", 1), ("b", 0))
    request = asked(session)
    assert (request.session_id, request.session_epoch, request.topics) == (7, 1, [])
    assert session.accept(answer(7))

    session.want(("a", 1), entry(1, offset=10))  # moved
    session.want(("c", 5), entry(5))  # added
    session.forget(("b", 0))  # removed
    request = asked(session)
    assert (request.session_id, request.session_epoch) == (7, 2)
    assert wanted_of(request) == [("a", [entry(1, offset=10)]), ("c", [entry(5)])]
    assert forgotten_of(request) == [("b", [0])]
    assert session.accept(answer(7, ("c", 5)))
    assert asked(session).topics == []


def test_removed_and_added_again_before_the_next_request_is_a_change() -> None:
    session = begun(("a", 0))
    session.forget(("a", 0))
    session.want(("a", 0), entry(0, epoch=2))
    request = asked(session)
    assert wanted_of(request) == [("a", [entry(0, epoch=2)])]
    assert forgotten_of(request) == []


def test_added_and_removed_before_the_next_request_is_nothing() -> None:
    session = begun(("a", 0))
    session.want(("b", 0), entry(0))
    session.forget(("b", 0))
    request = asked(session)
    assert request.topics == request.forgotten_topics_data == []


def test_an_answer_under_way_may_name_what_is_not_wanted_any_more() -> None:
    session = begun(("a", 0), ("a", 1))
    asked(session)
    session.forget(("a", 0))
    assert session.accept(answer(7, ("a", 0), ("a", 1)))
    assert forgotten_of(asked(session)) == [("a", [0])]
    assert not session.accept(answer(7, ("a", 0)))


def test_without_a_session_every_request_is_full_and_the_last_changed_come_last() -> None:
    session = FetchSessionClient()
    session.want(("a", 0), entry(0))
    session.want(("b", 0), entry(0))
    asked(session)
    assert session.accept(answer(0, ("a", 0), ("b", 0)))
    session.want(("a", 0), entry(0, offset=5))
    request = asked(session)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert wanted_of(request) == [("b", [entry(0)]), ("a", [entry(0, offset=5)])]


def test_a_session_that_the_leader_has_closed_begins_anew() -> None:
    session = begun(("a", 0))
    asked(session)
    assert session.accept(answer(0, ("a", 0)))
    request = asked(session)
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert wanted_of(request) == [("a", [entry(0)])]


@pytest.mark.parametrize(
    ("error", "closed_session"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 7),
    ],
)
def test_a_refusal_is_followed_by_a_full_request(error: ErrorCode, closed_session: int) -> None:
    session = begun(("a", 0), ("a", 1))
    asked(session)
    assert not session.accept(answer(0, error=error))
    request = asked(session)
    assert (request.session_id, request.session_epoch) == (closed_session, 0)
    assert wanted_of(request) == [("a", [entry(0), entry(1)])]
    assert session.accept(answer(8, ("a", 0), ("a", 1)))
    assert asked(session).session_id == 8


def test_no_answer_is_followed_by_a_full_request() -> None:
    session = begun(("a", 0))
    session.want(("a", 1), entry(1))
    asked(session)
    session.request_failed()
    request = asked(session)
    assert (request.session_id, request.session_epoch) == (7, 0)
    assert wanted_of(request) == [("a", [entry(0), entry(1)])]


@pytest.mark.parametrize("partitions", [[], [("a", 0)], [("a", 0), ("a", 1), ("a", 2)], [("a", 0), ("b", 1)]])
def test_a_full_answer_must_have_all_partitions_and_no_others(partitions: list[tuple[str, int]]) -> None:
    session = FetchSessionClient()
    session.want(("a", 0), entry(0))
    session.want(("a", 1), entry(1))
    asked(session)
    assert not session.accept(answer(9, *partitions, throttle_time_ms=100))
    assert asked(session).session_epoch == 0


def test_an_incremental_answer_must_have_no_other_partitions() -> None:
    session = begun(("a", 0))
    asked(session)
    assert not session.accept(answer(7, ("a", 1)))
    request = asked(session)
    assert (request.session_id, request.session_epoch) == (7, 0)


def test_the_epoch_wraps_to_one() -> None:
    session = begun(("a", 0))
    session._epoch = 2**31 - 1
    assert asked(session).session_epoch == 2**31 - 1
    assert session.accept(answer(7))
    assert asked(session).session_epoch == 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("forget"), st.sampled_from("ab"), st.integers(0, 3)),
        st.tuples(st.just("fetch")),
        st.tuples(st.just("lost")),  # the leader reads the request, its answer is lost
        st.tuples(st.just("evict")),
    ),
    max_size=40,
)


@given(steps)
def test_the_leaders_session_always_holds_what_is_wanted(plan) -> None:
    session = FetchSessionClient()
    leader = FetchSessionCache(1, random.Random(1), lambda: 0.0)
    wanted: dict[tuple[str, int], FetchPartition] = {}

    def fetch(*, answered: bool) -> None:
        request = asked(session)
        try:
            exchange = in_one_go(
                leader.begin(
                    request.session_id,
                    request.session_epoch,
                    [(topic, want) for topic, partitions in wanted_of(request) for want in partitions],
                    [(topic, number) for topic, numbers in forgotten_of(request) for number in numbers],
                    is_follower=True,
                )
            )
        except KafkaError as error:
            session.accept(FetchResponse(error_code=error.code))
            return
        assert {(topic, want.partition): want for topic, want in exchange.wanted} == wanted
        results = [(topic, PartitionData(partition_index=want.partition)) for topic, want in exchange.wanted]
        answers = [(topic, result) for topic, result in results if exchange.must_answer(topic, result)]
        if not answered:
            session.request_failed()
            return
        topics = [(topic, [result]) for topic, result in answers]
        assert session.accept(fetch_response(*topics, session_id=exchange.session_id))

    for step in [*plan, ("fetch",), ("fetch",)]:
        match step:
            case ("want", topic, number, offset):
                wanted[topic, number] = entry(number, offset)
                session.want((topic, number), wanted[topic, number])
            case ("forget", topic, number):
                wanted.pop((topic, number), None)
                session.forget((topic, number))
            case ("evict",):
                leader = FetchSessionCache(1, random.Random(2), lambda: 0.0)
            case (kind,):
                fetch(answered=kind == "fetch")
