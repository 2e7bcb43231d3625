"""Map failed requests to an API server to Fairway's errors: one place for every way they can fail."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

import httpx2
import msgspec

from fairway.engines.kubernetes.api.wire import ApiStatus
from fairway.engines.port import Unreachable
from fairway.model.errors import FairwayError, Refused

_NOT_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"}
_MAX_TEXT_LENGTH: Final = 500
"""Length limit of a reply that is no Kubernetes status, e.g. a proxy's error page."""


class Expired(Exception):
    """The error when the API server no longer has the requested history (410): list again."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request as errors name it: where it was sent, and which permission it needs."""

    server: str
    verb: str
    resource: str = ""
    """Empty: a path such as /version."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}".strip()


def from_exception(error: Exception, call: ApiCall) -> FairwayError:
    """Map an exception to a Fairway error: no reply, or a broken one."""
    if isinstance(error, FairwayError):
        return error
    if isinstance(error, httpx2.TransportError | httpx2.InvalidURL | TimeoutError):
        return _from_transport(error, call)
    if isinstance(error, msgspec.DecodeError | httpx2.DecodingError | ValueError):
        return Unreachable(
            "UnexpectedAnswer",
            f"{call.server} did not respond like a Kubernetes API server ({call}): {_text(error)}",
            f"check what responds there: curl -k {call.server}/version",
        )
    if _is_about_credentials(error):
        return Refused(
            "CredentialsFailed",
            f"cannot get credentials for {call.server}: {_text(error)}",
            "run the command in users[].user.exec of the kubeconfig by hand, or try: kubectl auth whoami",
        )
    return Unreachable(
        "ClientFailed",
        f"asking {call.server} to {call} failed: {type(error).__name__}: {_text(error)}",
        "this is a bug: please report it with the server's log",
    )


def _from_transport(error: Exception, call: ApiCall) -> FairwayError:
    if (fault := _tls_fault(error)) is not None:
        return Refused(
            "TlsFailed",
            f"no trusted connection to {call.server}: {fault}",
            "compare the certificates in the kubeconfig with the cluster's own: "
            f"openssl s_client -showcerts -connect {call.server.removeprefix('https://')}",
        )
    if isinstance(error, httpx2.TimeoutException | TimeoutError):
        return Unreachable(
            "TimedOut",
            f"{call.server} did not respond in time ({call})",
            f"check it: curl -k -m 5 {call.server}/readyz",
        )
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return Refused(
            "BadServerUrl",
            f"{call.server} is not a usable address: {error}",
            "set clusters[].cluster.server in the kubeconfig to https://HOST:PORT",
        )
    return Unreachable(
        "ConnectionFailed",
        f"cannot reach {call.server}: {_text(error)}",
        f"check that the API server is running and reachable: curl -k -m 5 {call.server}/readyz",
    )


def from_status(code: int, body: bytes, call: ApiCall) -> FairwayError | Expired:
    """Map a reply other than 200 to a Fairway error."""
    status = _status(body)
    message = status.message or status.reason or f"HTTP {code}"
    if code == 410:
        return Expired(message)
    if code == 401:
        return Refused(
            "Unauthorized",
            f"{call.server} does not accept the credentials: {message}",
            "renew the token or client certificate in the kubeconfig; to test it: kubectl auth whoami",
        )
    if code == 403:
        return Refused("Forbidden", f"{call.server} does not allow it: {message}", _rule_to_add(call))
    if code == 429 or code >= 500:
        return Unreachable(
            "ServerBusy" if code == 429 else "ServerError",
            f"{call.server} answered HTTP {code} to {call}: {message}",
            "Fairway retries automatically; the API server's log says why: kubectl get --raw /readyz?verbose",
        )
    if code == 404 and call.resource.endswith(".kueue.x-k8s.io"):
        return Refused(
            "NoKueue",
            f"{call.server} has no {call.resource} of version v1beta2: Kueue is not installed, or is too old",
            "install Kueue 0.19, which Fairway needs for policy and jobs; what is there:"
            "  kubectl api-resources --api-group=kueue.x-k8s.io",
        )
    return Refused(
        "NotAnApiServer" if code == 404 or code < 400 else "BadRequest",
        f"{call.server} answered HTTP {code} to {call}: {message}",
        "check clusters[].cluster.server in the kubeconfig: it must be the API server's own address",
    )


def request_error(code: int, body: bytes, call: ApiCall) -> FairwayError:
    """Map a reply other than a success to a Fairway error, for requests that cannot list again."""
    error = from_status(code, body, call)
    if isinstance(error, Expired):
        return Unreachable("Expired", f"{call.server}: {error}", "Fairway retries automatically")
    return error


def _rule_to_add(call: ApiCall) -> str:
    if call.resource not in {"", "nodes", "pods"}:
        return f"Fairway needs the right to {call}:  kubectl apply -f deploy/kubernetes/rights.yaml"
    if not call.resource:
        return "bind the account to the ClusterRole system:public-info-viewer, which allows to read /version"
    return (
        f"add to the account's ClusterRole the rule "
        f'{{apiGroups: [""], resources: [{call.resource}], verbs: [list, watch]}} (missing: {call}); '
        f"Fairway needs it for nodes and pods: "
        f"kubectl create clusterrole fairway-observe --verb=list,watch --resource=nodes,pods"
    )


def _status(body: bytes) -> ApiStatus:
    try:
        return msgspec.json.decode(body, type=ApiStatus)
    except msgspec.DecodeError:
        return ApiStatus(message=" ".join(body[:_MAX_TEXT_LENGTH].decode(errors="replace").split()))


def _tls_fault(error: BaseException) -> str | None:
    """Return why one side does not trust the other. Returns None if that is not the cause.

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
    """Return whether an exec plugin is missing, fails or returns nonsense, or a token file is gone."""
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415  (heavy; loaded by now if it was raised)

    return isinstance(error, ConfigError | OSError | KeyError | TypeError)


def _text(error: Exception) -> str:
    return f"{error}"[:_MAX_TEXT_LENGTH] or type(error).__name__
