"""What somebody may do with a job, by role, by whose it is, and by its team."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from fairway.ledger import Token
from fairway.ledger.records.jobs import JobRow
from fairway.model.access import JobPermission, Role
from fairway.model.names import TeamName, UserName
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.rights import Person, submitting_user


def job_of(user: str, team: str | None) -> JobRow:
    """Of all its columns only these two count here."""
    row: dict[str, Any] = dict.fromkeys(field.name for field in fields(JobRow))
    return JobRow(**row | {"user": UserName(user), "team": team and TeamName(team)})


def token_of(user: str, role: Role) -> Token:
    row: dict[str, Any] = dict.fromkeys(field.name for field in fields(Token))
    return Token(**row | {"name": user, "user": UserName(user), "role": role})


@pytest.mark.parametrize(
    ("role", "user", "team", "reads", "changes"),
    [
        (Role.VIEWER, "alice", "nlp", True, False),
        (Role.MEMBER, "alice", "nlp", True, True),
        (Role.MEMBER, "alice", None, True, True),
        (Role.MEMBER, "bob", "nlp", False, False),
        (Role.LEAD, "bob", "nlp", True, True),
        (Role.LEAD, "carol", "vision", False, False),
        (Role.OPERATOR, "carol", "vision", True, True),
        # An engine that does not tell a job's user: it is nobody's own, least of all everybody's.
        (Role.MEMBER, "", None, False, False),
        (Role.MEMBER, "", "nlp", False, False),
        (Role.LEAD, "", None, False, False),
        (Role.LEAD, "", "nlp", True, True),
    ],
)
def test_what_alice_of_nlp_may_do(
    role: Role, user: str, team: str | None, reads: bool, changes: bool
) -> None:
    alice = Person(UserName("alice"), role, frozenset({TeamName("nlp")}))
    job = job_of(user, team)
    assert alice.may(JobPermission.SEE, job)
    assert (alice.may(JobPermission.READ, job), alice.may(JobPermission.CHANGE, job)) == (reads, changes)


def test_who_has_no_name_owns_no_job_without_one() -> None:
    nobody = Person(UserName(""), Role.MEMBER, frozenset())
    assert not nobody.may(JobPermission.CHANGE, job_of("", None))


@pytest.mark.parametrize("user", ["root", "slurm", "0", "munge"])
@pytest.mark.parametrize("role", [Role.MEMBER, Role.OPERATOR, Role.ADMIN])
def test_nobody_submits_as_a_system_user(user: str, role: Role) -> None:
    for token, as_user in ((token_of("oper", role), user), (token_of(user, role), None)):
        with pytest.raises(RequestError) as refused:
            submitting_user(token, as_user)
        assert refused.value.code in ("SystemUser", "RoleTooLow")
        assert refused.value.kind is ErrorKind.FORBIDDEN
    assert submitting_user(token_of("oper", Role.OPERATOR), "alice") == "alice"
