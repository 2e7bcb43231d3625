"""How a failed conversation with an API server is told: one place for every way it can fail."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

import httpx2
import msgspec

from fairway.engines.kubernetes.wire import Status
from fairway.engines.port import Refused, Unreachable
from fairway.model.errors import FairwayError

_NOT_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"}
_MOST_WORDS: Final = 500
"""Of an answer that is no Kubernetes status, e.g. a proxy's error page."""


class Expired(Exception):
    """The API server no longer has the history asked for (410): list again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request needs the right to."""

    server: str
    verb: str
    resource: str = ""
    """Empty: a path such as /version."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}".strip()


def from_exception(error: Exception, asked: Asked) -> FairwayError:
    """What a request that got no answer, or a broken one, means to a user."""
    if isinstance(error, FairwayError):
        return error
    if isinstance(error, httpx2.TransportError | httpx2.InvalidURL | TimeoutError):
        return _from_transport(error, asked)
    if isinstance(error, msgspec.DecodeError | httpx2.DecodingError | ValueError):
        return Unreachable(
            "UnexpectedAnswer",
            f"{asked.server} did not answer like a Kubernetes API server ({asked}): {_words(error)}",
            f"look at what answers there: curl -k {asked.server}/version",
        )
    if _is_about_credentials(error):
        return Refused(
            "CredentialsFailed",
            f"cannot get credentials for {asked.server}: {_words(error)}",
            "run the command in users[].user.exec of the kubeconfig by hand, or try: kubectl auth whoami",
        )
    return Unreachable(
        "ClientFailed",
        f"asking {asked.server} to {asked} failed: {type(error).__name__}: {_words(error)}",
        "this should not happen; please report it with the server's log",
    )


def _from_transport(error: Exception, asked: Asked) -> FairwayError:
    if (trust := _tls_fault(error)) is not None:
        return Refused(
            "TlsFailed",
            f"no trusted connection to {asked.server}: {trust}",
            "compare the certificates in the kubeconfig with the cluster's own: "
            f"openssl s_client -showcerts -connect {asked.server.removeprefix('https://')}",
        )
    if isinstance(error, httpx2.TimeoutException | TimeoutError):
        return Unreachable(
            "TimedOut",
            f"{asked.server} did not answer in time ({asked})",
            f"try it by hand: curl -k -m 5 {asked.server}/readyz",
        )
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return Refused(
            "BadServerUrl",
            f"{asked.server} is no usable address: {error}",
            "set clusters[].cluster.server in the kubeconfig to https://HOST:PORT",
        )
    return Unreachable(
        "ConnectionFailed",
        f"cannot reach {asked.server}: {_words(error)}",
        f"is the API server running and the way to it open? try: curl -k -m 5 {asked.server}/readyz",
    )


def from_status(code: int, body: bytes, asked: Asked) -> FairwayError | Expired:
    """What an answer other than 200 means to a user."""
    status = _status(body)
    words = status.message or status.reason or f"HTTP {code}"
    if code == 410:
        return Expired(words)
    if code == 401:
        return Refused(
            "Unauthorized",
            f"{asked.server} does not accept the credentials: {words}",
            "renew the token or client certificate in the kubeconfig; to test it: kubectl auth whoami",
        )
    if code == 403:
        return Refused("Forbidden", f"{asked.server} does not allow it: {words}", _rule_to_add(asked))
    if code == 429 or code >= 500:
        return Unreachable(
            "ServerBusy" if code == 429 else "ServerError",
            f"{asked.server} answered HTTP {code} to {asked}: {words}",
            "Fairway tries again by itself; the API server's log says why: kubectl get --raw /readyz?verbose",
        )
    return Refused(
        "NotAnApiServer" if code == 404 or code < 400 else "BadRequest",
        f"{asked.server} answered HTTP {code} to {asked}: {words}",
        "check clusters[].cluster.server in the kubeconfig: it must be the API server's own address",
    )


def _rule_to_add(asked: Asked) -> str:
    if asked.resource not in {"", "nodes", "pods"}:
        return f"Fairway needs the right to {asked}:  kubectl apply -f deploy/kubernetes/rights.yaml"
    if not asked.resource:
        return "bind the account to the ClusterRole system:public-info-viewer, which allows to read /version"
    return (
        f"add to the account's ClusterRole the rule "
        f'{{apiGroups: [""], resources: [{asked.resource}], verbs: [list, watch]}} (missing: {asked}); '
        f"Fairway needs it for nodes and pods: "
        f"kubectl create clusterrole fairway-observe --verb=list,watch --resource=nodes,pods"
    )


def _status(body: bytes) -> Status:
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        return Status(message=" ".join(body[:_MOST_WORDS].decode(errors="replace").split()))


def _tls_fault(error: BaseException) -> str | None:
    """Why one side does not trust the other, if that is what is behind an exception.

    Most TLS errors are lost connections in disguise; these are not.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        reason = str(getattr(cause, "reason", "")) if isinstance(cause, ssl.SSLError) else ""
        if "ALERT" in reason or reason in _NOT_TLS:
            return reason
        cause = cause.__cause__ or cause.__context__
    return None


def _is_about_credentials(error: Exception) -> bool:
    """An exec plugin that is missing, fails or answers nonsense; a token file that is gone."""
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415  (heavy; loaded by now if it was raised)

    return isinstance(error, ConfigError | OSError | KeyError | TypeError)


def _words(error: Exception) -> str:
    return f"{error}"[:_MOST_WORDS] or type(error).__name__
