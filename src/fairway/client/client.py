"""Asks a Fairway server. Every call is bounded in time; every failure is a FairwayError with a hint."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from fairway.api import budget_wire, policy_wire, wire
from fairway.client.calls import (
    MOST_PAGES,
    TIMEOUT,
    Answer,
    Call,
    Exchange,
    ServerFailed,
    ServerRefused,
    ServerUnreachable,
    get,
    next_page,
    post,
)
from fairway.client.contexts import Target, chosen_target
from fairway.client.cost_calls import PATIENT, focus_params
from fairway.client.jobs import JobVerbs
from fairway.client.money import MoneyVerbs
from fairway.model.access import Role
from fairway.model.errors import PermanentError
from fairway.model.observation import Health

__all__ = ["Client", "ServerFailed", "ServerRefused", "ServerUnreachable"]

# The server looks at every cluster for as long as a minute, eight at a time.
_LOOKING: Final = httpx2.Timeout(600.0, connect=5.0)


class Client(JobVerbs, MoneyVerbs):
    """One server, one token. Use as a context manager."""

    def __init__(
        self,
        target: Target | None = None,
        timeout: httpx2.Timeout = TIMEOUT,
        *,
        context: str | None = None,
    ) -> None:
        """Without a target: the one the command line would use, by this context or the current one."""
        self._exchange = Exchange(target or chosen_target(context))
        self._timeout = timeout
        self._http = httpx2.Client(**self._exchange.connecting, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def clusters(self) -> list[wire.Cluster]:
        """Every cluster of the fleet."""
        return list(self._pages("/v1/clusters", wire.Page[wire.Cluster], {}))

    def pools(self, cluster: str | None = None) -> list[wire.Pool]:
        """Every pool of the fleet, or of one cluster."""
        return list(self._pages("/v1/pools", wire.Page[wire.Pool], {"cluster": cluster}))

    def nodes(
        self, cluster: str | None = None, pool: str | None = None, health: Health | None = None
    ) -> Iterator[wire.Node]:
        """Every node that fits, page by page."""
        return self._pages(
            "/v1/nodes", wire.Page[wire.Node], {"cluster": cluster, "pool": pool, "health": health}
        )

    def tokens(self) -> list[wire.Token]:
        """Every token ever made."""
        return list(self._pages("/v1/tokens", wire.Page[wire.Token], {}))

    def create_token(
        self, name: str, role: Role, expires_in_seconds: int | None, user: str | None = None
    ) -> wire.MadeToken:
        """Make a token; the answer holds its secret."""
        try:
            new = wire.NewToken(name=name, role=role, user=user, expires_in_seconds=expires_in_seconds)
        except ValidationError as error:
            fault = error.errors()[0]
            raise PermanentError(
                "InvalidRequest", f"{fault['loc'][0]}: {fault['msg']}", "fairway token create --help"
            ) from error
        return self._send(post("/v1/tokens", new, wire.MadeToken))

    def revoke_token(self, name: str) -> wire.Token:
        """End a token's life."""
        return self._send(Call("DELETE", f"/v1/tokens/{quote(name, safe='')}", wire.Token))

    def whoami(self) -> wire.Whoami:
        """Who the server takes this client for."""
        return self._send(get("/v1/whoami", wire.Whoami))

    # policy

    def plan(self, fleet: str, source: str, cluster: str | None = None) -> policy_wire.Plan:
        """What a fleet file would change."""
        asked = policy_wire.AskedPlan(fleet=fleet, source=source, cluster=cluster)
        return self._post("/v1/plans", asked, policy_wire.Plan)

    def apply(
        self, fleet: str, source: str, fingerprints: Mapping[str, str], *, force: bool
    ) -> policy_wire.Apply:
        """Ask for a planned fleet to be made so; the answer says how to follow it."""
        asked = policy_wire.AskedApply(
            fleet=fleet, source=source, fingerprints=dict(fingerprints), force=force
        )
        return self._post("/v1/applies", asked, policy_wire.Apply)

    def adopt(self, cluster: str, objects: Sequence[policy_wire.ObjectRef]) -> policy_wire.Apply:
        """Ask for Fairway's mark on these objects."""
        asked = policy_wire.AskedAdoption(cluster=cluster, objects=list(objects))
        return self._post("/v1/adoptions", asked, policy_wire.Apply)

    def applies(self, cluster: str | None = None, most: int = 20) -> list[policy_wire.Apply]:
        """The newest applies, of one cluster if it is named."""
        return self._newest("/v1/applies", wire.Page[policy_wire.Apply], cluster, most)

    def apply_detail(self, number: int) -> policy_wire.ApplyDetail:
        """One apply with every change."""
        return self._send(get(f"/v1/applies/{number}", policy_wire.ApplyDetail))

    def apply_progress(self, number: int) -> policy_wire.Apply:
        """One apply without its changes: cheap enough to ask twice a second."""
        return self._send(get(f"/v1/applies/{number}/progress", policy_wire.Apply))

    def drift(self, cluster: str | None = None) -> list[policy_wire.Drift]:
        """Every difference between the clusters and what was last applied to them."""
        return list(self._pages("/v1/drift", wire.Page[policy_wire.Drift], {"cluster": cluster}))

    def budgets(self) -> budget_wire.Budgets:
        """How the budgets the caller may see stand."""
        return self._send(get("/v1/budgets", budget_wire.Budgets))

    def teams(self) -> list[policy_wire.Team]:
        """The teams as last applied."""
        return list(self._pages("/v1/teams", wire.Page[policy_wire.Team], {}))

    def nudges(self, cluster: str | None = None, most: int = 100) -> list[policy_wire.Nudge]:
        """The newest nudges, of one cluster if it is named."""
        return self._newest("/v1/nudges", wire.Page[policy_wire.Nudge], cluster, most)

    def render(self, fleet: str, source: str, cluster: str) -> policy_wire.Rendered:
        """The files of an engine that Fairway does not write itself."""
        asked = policy_wire.AskedRender(fleet=fleet, source=source, cluster=cluster)
        return self._post("/v1/renders", asked, policy_wire.Rendered)

    def import_policy(self, cluster: str) -> policy_wire.Imported:
        """An existing cluster as a fleet file."""
        return self._post("/v1/imports", policy_wire.AskedImport(cluster=cluster), policy_wire.Imported)

    # money

    def export_focus(self, window: str, team: str | None = None) -> Iterator[bytes]:
        """A FOCUS file as CSV, in pieces as the server writes them. Raises if it breaks off."""
        params = tuple(focus_params(window, team))
        try:
            with self._http.stream("GET", "/v1/exports/focus", params=params, timeout=PATIENT) as response:
                if not response.is_success:
                    response.read()
                    raise self._exchange.refused(response)
                yield from response.iter_bytes()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._exchange.lost(error) from error

    def _post(self, path: str, asked: BaseModel, answer: type[Answer]) -> Answer:
        return self._send(post(path, asked, answer, timeout=_LOOKING))

    def _newest(
        self, path: str, page: type[wire.Page[wire.Item]], cluster: str | None, most: int
    ) -> list[wire.Item]:
        """The first so many of a list that begins with the newest; no page is larger than needed."""
        found = self._pages(path, page, {"cluster": cluster}, per_page=min(most, wire.MOST_PER_PAGE))
        return list(itertools.islice(found, most))

    def _pages(
        self,
        path: str,
        page: type[wire.Page[wire.Item]],
        query: Mapping[str, str | None],
        per_page: int = wire.MOST_PER_PAGE,
    ) -> Iterator[wire.Item]:
        return self._every(get(path, page, [*query.items(), ("limit", per_page)]))

    def _every(self, call: Call[wire.Page[wire.Item]]) -> Iterator[wire.Item]:
        for _ in range(MOST_PAGES):
            answer = self._send(call)
            yield from answer.items
            if answer.next_cursor is None:
                return
            call = next_page(call, answer.next_cursor)
        raise self._exchange.endless(call.path)

    def _send(self, call: Call[Answer]) -> Answer:
        for pause in call.pauses:
            try:
                return self._send_once(call)
            except (ServerUnreachable, ServerFailed):
                time.sleep(pause)
        return self._send_once(call)

    def _send_once(self, call: Call[Answer]) -> Answer:
        try:
            response = self._http.request(**self._exchange.sending(call, self._timeout))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._exchange.lost(error) from error
        return self._exchange.read(call, response)
