"""Asks a Fairway server. Every call is bounded in time; every failure is a FairwayError with a hint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import httpx2

from fairway.api import wire
from fairway.client.calls import (
    MOST_PAGES,
    TIMEOUT,
    Answer,
    Call,
    Exchange,
    ServerFailed,
    ServerRefused,
    ServerUnreachable,
    next_page,
)
from fairway.client.contexts import Target, chosen_target
from fairway.client.cost_calls import PATIENT, focus_params
from fairway.client.fleet import FleetVerbs
from fairway.client.jobs import JobVerbs
from fairway.client.money import MoneyVerbs

__all__ = ["Client", "ServerFailed", "ServerRefused", "ServerUnreachable"]


class Client(FleetVerbs, JobVerbs, MoneyVerbs):
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
