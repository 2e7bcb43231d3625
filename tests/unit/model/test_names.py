"""Users that nobody may be."""

from __future__ import annotations

import pytest

from fairway.model.names import is_system_user


@pytest.mark.parametrize(
    "user", ["root", "ROOT", " root", "slurm", "munge", "daemon", "0", "00", "+0", "system:anonymous", ""]
)
def test_system_users(user: str) -> None:
    assert is_system_user(user)


@pytest.mark.parametrize(
    "user", ["alice", "rooter", "4711", "slurm-admin", "oidc:root", "system:serviceaccount:nlp:ci", "a0"]
)
def test_people(user: str) -> None:
    assert not is_system_user(user)
