"""An object store for the tests of archives: moto's, and in the long ones S3Mock as a second opinion."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.spark.object_store import BUCKET, Store, running_second_opinion, running_store


@pytest.fixture(scope="module", params=["moto", pytest.param("S3Mock", marks=[pytest.mark.long, pytest.mark.java])])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "moto":
        with running_store() as running:
            yield running
    else:
        request.getfixturevalue("java")
        with running_second_opinion(tmp_path_factory.mktemp("s3mock") / "store") as running:
            yield running


@pytest.fixture
def store(stores: Store) -> Iterator[Store]:
    yield stores
    stores.rule = lambda request: None


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A prefix of the test's own."""
    return f"s3://{BUCKET}/{tmp_path.name}/archive"
