import pytest

from klamm.storage.log.leader_epoch_cache import LeaderEpochCache


@pytest.fixture
def written():
    return []


@pytest.fixture
def cache(written):
    return LeaderEpochCache([(2, 0), (4, 10), (7, 20)], lambda entries: written.append(list(entries)))


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),  # Before the first: the requested epoch, and where the first known one begins.
        (2, (2, 10)),
        (3, (2, 10)),
        (4, (4, 20)),
        (6, (4, 20)),
        (7, (7, 33)),
        (8, (-1, -1)),
    ],
)
def test_end_offsets(cache, epoch, expected):
    assert cache.end_offset_for(epoch, log_end_offset=33) == expected


def test_an_empty_cache_knows_nothing():
    cache = LeaderEpochCache([], lambda entries: None)
    assert cache.end_offset_for(0, 5) == (-1, -1)
    assert (cache.latest_epoch, cache.earliest, cache.epoch_for(3)) == (-1, None, -1)


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (7, 20, None),
        (7, 25, None),
        (7, 15, [(2, 0), (4, 10), (7, 15)]),
        (8, 30, [(2, 0), (4, 10), (7, 20), (8, 30)]),
        (8, 20, [(2, 0), (4, 10), (8, 20)]),
        (8, 10, [(2, 0), (8, 10)]),
        (8, 0, [(8, 0)]),
        (5, 30, [(2, 0), (4, 10), (5, 30)]),
        (4, 30, [(2, 0), (4, 10)]),  # Where it is known to begin, whatever later epoch is contradicted.
        (4, 10, [(2, 0), (4, 10)]),
        (4, 5, [(2, 0), (4, 5)]),
    ],
)
def test_assigning(cache, written, epoch, start, expected):
    before = list(cache.entries)
    cache.assign(epoch, start)
    assert list(cache.entries) == (expected or before)
    assert written == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("end", "expected"), [(21, None), (20, [(2, 0), (4, 10)]), (10, [(2, 0)]), (1, [(2, 0)]), (0, [])]
)
def test_truncating_the_end(cache, written, end, expected):
    cache.truncate_from_end(end)
    assert written == ([expected] if expected is not None else [])


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, None),
        (5, [(2, 5), (4, 10), (7, 20)]),
        (10, [(4, 10), (7, 20)]),
        (15, [(4, 15), (7, 20)]),
        (100, [(7, 100)]),
    ],
)
def test_truncating_the_start(cache, written, start, expected):
    cache.truncate_from_start(start)
    assert written == ([expected] if expected is not None else [])


def test_the_epoch_of_an_offset(cache):
    assert [cache.epoch_for(offset) for offset in (0, 9, 10, 20, 99)] == [2, 2, 4, 7, 7]


def test_a_failed_write_changes_nothing():
    def fail(entries):
        raise OSError("full")

    cache = LeaderEpochCache([(1, 0)], fail)
    for change in (lambda: cache.assign(2, 5), lambda: cache.truncate_from_end(0), cache.clear):
        with pytest.raises(OSError, match="full"):
            change()
        assert list(cache.entries) == [(1, 0)]
