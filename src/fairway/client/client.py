"""Asks a Fairway server. Every call is bounded in time; every failure is a FairwayError with a hint."""

from __future__ import annotations

import itertools
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from fairway import __version__
from fairway.api import policy_wire, wire
from fairway.client.contexts import Target
from fairway.model.access import Role
from fairway.model.errors import FairwayError, PermanentError, TemporaryError
from fairway.model.observation import Health

_TIMEOUT: Final = httpx2.Timeout(30.0, connect=5.0)
# The server looks at every cluster for as long as a minute, eight at a time.
_LOOKING: Final = httpx2.Timeout(600.0, connect=5.0)
# Only reads are tried again: a create whose answer was lost may have happened.
_PAUSES_SECONDS: Final = (0.1, 0.4)
_RETRIED: Final = frozenset({502, 503, 504})
_MOST_PAGES: Final = 100_000

Answer = TypeVar("Answer", bound=BaseModel)


class ServerUnreachable(TemporaryError):
    """Nobody answers at that URL, or not in time."""


class ServerRefused(PermanentError):
    """The server answered no; code and hint are its own, `faults` is all that is wrong with what was sent."""

    def __init__(self, code: str, message: str, hint: str, faults: Sequence[wire.Fault] = ()) -> None:
        super().__init__(code, message, hint)
        self.faults = tuple(faults)


class ServerFailed(TemporaryError):
    """The server answered that it cannot now."""


class Client:
    """One server, one token. Use as a context manager."""

    def __init__(self, target: Target, timeout: httpx2.Timeout = _TIMEOUT) -> None:
        self._url = target.url
        self._timeout = timeout
        headers = {"User-Agent": f"fairway/{__version__}", "Accept": "application/json"}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        self._http = httpx2.Client(
            base_url=target.url,
            headers=headers,
            timeout=timeout,
            verify=_trust(target.ca_file) if target.url.startswith("https:") else False,
            # A proxy from the environment must not see the token of a server on loopback.
            trust_env=not _is_loopback(target.url),
        )

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

    def create_token(self, name: str, role: Role, expires_in_seconds: int | None) -> wire.MadeToken:
        """Make a token; the answer holds its secret."""
        try:
            new = wire.NewToken(name=name, role=role, expires_in_seconds=expires_in_seconds)
        except ValidationError as error:
            fault = error.errors()[0]
            raise PermanentError(
                "InvalidRequest", f"{fault['loc'][0]}: {fault['msg']}", "fairway token create --help"
            ) from error
        return self._ask("POST", "/v1/tokens", wire.MadeToken, json=new.model_dump(mode="json"))

    def revoke_token(self, name: str) -> wire.Token:
        """End a token's life."""
        return self._ask("DELETE", f"/v1/tokens/{quote(name, safe='')}", wire.Token)

    def whoami(self) -> wire.Whoami:
        """Who the server takes this client for."""
        return self._ask("GET", "/v1/whoami", wire.Whoami)

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
        return self._ask("GET", f"/v1/applies/{number}", policy_wire.ApplyDetail)

    def apply_progress(self, number: int) -> policy_wire.Apply:
        """One apply without its changes: cheap enough to ask twice a second."""
        return self._ask("GET", f"/v1/applies/{number}/progress", policy_wire.Apply)

    def drift(self, cluster: str | None = None) -> list[policy_wire.Drift]:
        """Every difference between the clusters and what was last applied to them."""
        return list(self._pages("/v1/drift", wire.Page[policy_wire.Drift], {"cluster": cluster}))

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

    def _post(self, path: str, asked: BaseModel, answer: type[Answer]) -> Answer:
        return self._ask("POST", path, answer, json=asked.model_dump(mode="json"), timeout=_LOOKING)

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
        params = {key: str(value) for key, value in query.items() if value is not None}
        params["limit"] = str(per_page)
        for _ in range(_MOST_PAGES):
            answer = self._ask("GET", path, page, params=params)
            yield from answer.items
            if answer.next_cursor is None:
                return
            params["cursor"] = answer.next_cursor
        raise ServerRefused("EndlessList", f"{self._url}{path} never ends", "report it as a defect")

    def _ask(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        *,
        params: Mapping[str, str] | None = None,
        json: object = None,
        timeout: httpx2.Timeout | None = None,
    ) -> Answer:
        def once() -> Answer:
            return self._ask_once(method, path, answer, params, json, timeout or self._timeout)

        for pause in _PAUSES_SECONDS if method == "GET" else ():
            try:
                return once()
            except (ServerUnreachable, ServerFailed):
                time.sleep(pause)
        return once()

    def _ask_once(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        params: Mapping[str, str] | None,
        json: object,
        timeout: httpx2.Timeout,
    ) -> Answer:
        try:
            response = self._http.request(method, path, params=params, json=json, timeout=timeout)
        except httpx2.TimeoutException as error:
            raise self._unreachable("it did not answer in time") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unreachable(str(error) or type(error).__name__) from error
        if not response.is_success:
            raise self._refusal(response)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise self._not_fairway(response.status_code) from error

    def _unreachable(self, why: str) -> FairwayError:
        return ServerUnreachable(
            "ServerUnreachable",
            f"no server answers at {self._url}: {why}",
            "start one:  fairway server -f fleet.yaml   or choose another:  fairway context list",
        )

    def _refusal(self, response: httpx2.Response) -> FairwayError:
        try:
            problem = wire.Problem.model_validate_json(response.content)
        except ValidationError:
            return self._not_fairway(response.status_code)
        if response.status_code in _RETRIED:
            return ServerFailed(problem.code, problem.detail, problem.hint)
        return ServerRefused(problem.code, problem.detail, problem.hint, problem.faults)

    def _not_fairway(self, status: int) -> FairwayError:
        kind = ServerFailed if status in _RETRIED else ServerRefused
        return kind(
            "NotFairway",
            f"what answers at {self._url} (HTTP {status}) does not speak Fairway's API",
            "look at the URL:  fairway context list",
        )


def _trust(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise PermanentError(
            "CertificateNotReadable", f"cannot use the CA file {ca_file}: {error}", "fairway context list"
        ) from error


def _is_loopback(url: str) -> bool:
    host: Any = httpx2.URL(url).host
    return host in ("127.0.0.1", "::1", "localhost")
