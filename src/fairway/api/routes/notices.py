"""The routes of notices: what was reported to whom, and what each user chooses to get."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request

from fairway.api.auth import allow, caller_of
from fairway.api.routes.fleet import PROBLEMS, VIEWER, Name, problems
from fairway.model.access import Role
from fairway.model.notice_rules import NoticeKind
from fairway.services.notices import NoticeQueries
from fairway.wire import notices as wire
from fairway.wire.fleet import MAX_PER_PAGE

MEMBER = allow(Role.MEMBER)
_TEST = problems({403: "it is not your team", 404: "there is no such team"}, PROBLEMS)


def add_notice_routes(app: FastAPI, notices: NoticeQueries) -> None:
    """Add the routes of notices."""

    @app.get("/v1/notices", dependencies=VIEWER, responses=PROBLEMS, tags=["fleet"])
    async def list_notices(
        request: Request,
        kind: Annotated[NoticeKind | None, Query(description="only of this kind")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PER_PAGE)] = 50,
    ) -> wire.Notices:
        """List the newest notices with their deliveries. Members see those of their teams and their own."""
        return await notices.notices(caller_of(request), kind, limit)

    @app.get("/v1/notices/rules", dependencies=MEMBER, responses=PROBLEMS, tags=["fleet"])
    async def show_notice_rules(request: Request) -> wire.OwnNoticeRules:
        """Return which notices the caller gets by mail, and when."""
        return await notices.rules(caller_of(request))

    @app.put("/v1/notices/rules", dependencies=MEMBER, responses=PROBLEMS, tags=["fleet"])
    async def put_notice_rules(request: Request, rules: wire.NoticeRules) -> wire.OwnNoticeRules:
        """Choose which notices to get by mail. Kinds that are not named are sent as the default says."""
        return await notices.put_rules(caller_of(request), rules)

    @app.post("/v1/notices/test", dependencies=MEMBER, responses=_TEST, tags=["fleet"])
    async def test_notice(request: Request, team: Name = None) -> wire.Notice:
        """Send a test notice to the caller, or to the channels of a team. Rules do not apply to it."""
        return await notices.test(caller_of(request), team or None)
