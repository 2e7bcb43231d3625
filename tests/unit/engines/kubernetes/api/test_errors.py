from __future__ import annotations

import json
import ssl
from dataclasses import replace

import httpx2
import msgspec
import pytest

from fairway.engines.kubernetes.api.errors import ApiCall, Expired, from_exception, from_status
from fairway.engines.port import Unreachable
from fairway.model.errors import FairwayError, Refused

ASKED = ApiCall("https://k8s:6443", "watch", "pods")


def caused(by: Exception, error: Exception) -> Exception:
    error.__cause__ = by
    return error


def tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (httpx2.ConnectError("refused"), Unreachable, "ConnectionFailed"),
        (httpx2.ReadError("reset"), Unreachable, "ConnectionFailed"),
        (httpx2.RemoteProtocolError("cut"), Unreachable, "ConnectionFailed"),
        (httpx2.ReadTimeout("slow"), Unreachable, "TimedOut"),
        (TimeoutError(), Unreachable, "TimedOut"),
        (httpx2.UnsupportedProtocol("ftp"), Refused, "BadServerUrl"),
        (httpx2.InvalidURL("://"), Refused, "BadServerUrl"),
        (msgspec.DecodeError("<html>"), Unreachable, "UnexpectedAnswer"),
        (ValueError("a line of more"), Unreachable, "UnexpectedAnswer"),
        (FileNotFoundError("aws"), Refused, "CredentialsFailed"),
        (KeyError("token"), Refused, "CredentialsFailed"),
        (RuntimeError("never seen"), Unreachable, "ClientFailed"),
        (caused(tls("CERTIFICATE_REQUIRED_ALERT"), httpx2.ReadError("x")), Refused, "TlsFailed"),
        (caused(tls("WRONG_VERSION_NUMBER"), httpx2.ConnectError("x")), Refused, "TlsFailed"),
        # a connection lost within TLS is a lost connection
        (caused(ssl.SSLEOFError(8, "EOF"), httpx2.ReadError("x")), Unreachable, "ConnectionFailed"),
        (caused(ssl.SSLWantReadError(2, "x"), httpx2.ReadTimeout("x")), Unreachable, "TimedOut"),
    ],
)
def test_every_failure_has_a_code_and_a_hint(error: Exception, kind: type[FairwayError], code: str) -> None:
    told = from_exception(error, ASKED)

    assert type(told) is kind
    assert told.code == code
    assert told.hint
    assert "https://k8s:6443" in told.message


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (302, Refused, "NotAnApiServer"),
        (400, Refused, "BadRequest"),
        (401, Refused, "Unauthorized"),
        (403, Refused, "Forbidden"),
        (404, Refused, "NotAnApiServer"),
        (429, Unreachable, "ServerBusy"),
        (500, Unreachable, "ServerError"),
        (503, Unreachable, "ServerError"),
    ],
)
def test_answers_that_say_no(status: int, kind: type[FairwayError], code: str) -> None:
    told = from_status(status, json.dumps({"message": "the server's words"}).encode(), ASKED)

    assert type(told) is kind
    assert isinstance(told, FairwayError)
    assert told.code == code
    assert "the server's words" in told.message


def test_a_cluster_without_kueue_is_told_so() -> None:
    told = from_status(404, b"404 page not found", replace(ASKED, resource="topologies.kueue.x-k8s.io"))

    assert isinstance(told, Refused)
    assert told.code == "NoKueue"
    assert "Kueue is not installed" in told.message
    assert "kubeconfig" not in told.hint


def test_lost_history_is_no_error_for_a_user() -> None:
    assert isinstance(from_status(410, b'{"reason": "Expired"}', ASKED), Expired)


def test_a_missing_right_names_the_rule_to_add() -> None:
    told = from_status(403, b"{}", ASKED)

    assert isinstance(told, Refused)
    assert 'apiGroups: [""], resources: [pods], verbs: [list, watch]' in told.hint
    assert "missing: watch pods" in told.hint
    assert "kubectl create clusterrole" in told.hint


def test_a_page_of_html_is_cut_short() -> None:
    told = from_status(502, b"<html>\n" + b"x" * 10_000, ASKED)

    assert isinstance(told, Unreachable)
    assert len(told.message) < 700
