"""Asks each page of a running demo many times, as a browser that is signed in, and tells how long it took."""

from __future__ import annotations

import re
import time
from http.cookiejar import CookieJar
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, ProxyHandler, Request, build_opener

PAGES = (
    "/",
    "/fleet",
    "/pools/hpc-a100",
    "/teams",
    "/teams/nlp",
    "/jobs",
    "/jobs/{job}",
    "/cost",
    "/policy",
    "/policy/history",
)


def signed_in(url: str, token: str) -> OpenerDirector:
    opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))
    form = urlencode({"token": token, "next": "/"}).encode()
    with opener.open(Request(f"{url}/sign-in", form, {"Origin": url}), timeout=30) as answer:
        assert answer.url == f"{url}/", "signing in leads to the first page"
    return opener


def timed(url: str, token: str, times: int = 50) -> dict[str, tuple[float, float]]:
    """Of each page the median and the 95th percentile, in seconds."""
    browser = signed_in(url, token)
    job = re.search(r'href="/jobs/([0-9a-z]{4,})"', _read(browser, f"{url}/jobs"))
    assert job is not None, "the list of jobs has none to open"
    found: dict[str, tuple[float, float]] = {}
    for page in PAGES:
        path = page.format(job=job[1])
        _read(browser, url + path)  # the first one compiles its template
        took = sorted(_seconds(browser, url + path) for _ in range(times))
        found[page] = took[times // 2], took[int(times * 0.95)]
    return found


def _seconds(browser: OpenerDirector, url: str) -> float:
    began = time.perf_counter()
    _read(browser, url)
    return time.perf_counter() - began


def _read(browser: OpenerDirector, url: str) -> str:
    with browser.open(url, timeout=60) as answer:
        assert answer.status == 200, url
        assert "/sign-in" not in answer.url, url
        return str(answer.read().decode())
