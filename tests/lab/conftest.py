"""The lab under test: instances in a folder of this run's own, gone at the end whatever happens."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab import every, folders


@pytest.fixture(scope="session", autouse=True)
def own_instances() -> Iterator[None]:
    before = os.environ.get("FAIRWAY_LAB_INSTANCES")
    own = folders.home() / f"test-{os.getpid()}"
    os.environ["FAIRWAY_LAB_INSTANCES"] = str(own)
    yield
    for instance in every():
        instance.wipe()
    folders.remove(own)
    if before is None:
        del os.environ["FAIRWAY_LAB_INSTANCES"]
    else:
        os.environ["FAIRWAY_LAB_INSTANCES"] = before
