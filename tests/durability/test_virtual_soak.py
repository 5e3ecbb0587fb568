"""Six hours of a simulated cluster's life: no container of a broker grows with time. `bench/soak.py` runs a day."""

import pytest

from support.soak.virtual import virtual_soak


@pytest.mark.long
def test_no_container_of_a_broker_grows_with_time() -> None:
    looks, growths, _ = virtual_soak(hours=6, seed=3)
    assert len(looks) == 6
    assert [growth for growth in growths if growth.is_too_much] == []
