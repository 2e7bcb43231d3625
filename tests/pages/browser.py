"""A browser that keeps account: what a page asked for, what the browser refused it, what went wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, Response

Theme = Literal["light", "dark"]
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")
WIDTHS: Final = (1440, 768, 390)
"""A desk, a tablet, a phone."""
HEIGHT: Final = 900
CHROMIUM: Final = "/usr/bin/chromium"
_QUIET: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
)
_LOCAL: Final = frozenset({"127.0.0.1", "localhost"})
_TELL_VIOLATIONS: Final = """
addEventListener("securitypolicyviolation", (event) => fairwayViolation(
  `${event.effectiveDirective}: ${event.blockedURI} at ${event.sourceFile}:${event.lineNumber}`));
"""
_AXE: Final = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
_SERIOUS: Final = frozenset({"serious", "critical"})


@dataclass
class Noticed:
    """What no page may do, as it happened."""

    outside: list[str] = field(default_factory=list)
    """Requests to anywhere but this host."""
    violations: list[str] = field(default_factory=list)
    """What the content security policy refused."""
    errors: list[str] = field(default_factory=list)
    """Of scripts, and the console's."""
    failed: list[str] = field(default_factory=list)
    """Answers of 500 and above."""

    def nothing(self) -> None:
        """Fail unless all was well."""
        assert not self.outside, f"left the host: {self.outside}"
        assert not self.violations, f"the policy refused: {self.violations}"
        assert not self.errors, f"errors in the page: {self.errors}"
        assert not self.failed, f"the server failed: {self.failed}"

    def forget_errors(self) -> None:
        """After a test that ended the server on purpose: nothing but the lost connection was noticed."""
        lost = ("ERR_", "EventSource", "htmx:sendError", "htmx:afterRequest")
        self.errors = [e for e in self.errors if not any(word in e for word in lost)]


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody with a browser window of their own."""

    page: Page
    noticed: Noticed
    url: str

    def open(self, path: str) -> Response | None:
        """Go there; the page is there when its scripts ran."""
        return self.page.goto(self.url + path, wait_until="load")

    def sign_in(self, token: str, path: str = "/") -> None:
        """By the form, as people do."""
        self.open(path)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in", exact=True).click()
        self.page.wait_for_selector("nav[aria-label=Pages]")

    def show(self, theme: Theme, width: int) -> None:
        """In that light, on that screen."""
        self.page.emulate_media(color_scheme=theme)
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        self.page.wait_for_timeout(80)  # what follows the size does so in the next frame

    def faults_for_people(self, *rules: str) -> list[str]:
        """What axe finds serious or critical, by all of its rules or by these."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(_AXE)
        how: dict[str, Any] = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
        found: dict[str, Any] = self.page.evaluate("(how) => axe.run(document, how)", how)
        return [
            f"{v['id']}: {v['help']}: {[(n['target'], n['failureSummary']) for n in v['nodes']][:4]}"
            for v in found["violations"]
            if v["impact"] in _SERIOUS
        ]

    def sticks_out(self) -> list[str]:
        """What makes the page itself scroll sideways; a table inside its own box may."""
        for _ in range(10):  # a plot is drawn anew some time after its box changed
            found = self._wider_than_the_screen()
            if not found:
                return []
            self.page.wait_for_timeout(200)
        return found

    def _wider_than_the_screen(self) -> list[str]:
        told: list[str] = self.page.evaluate(
            """() => {
              const wide = document.documentElement.clientWidth;
              if (document.documentElement.scrollWidth <= wide + 1) return [];
              const out = [...document.body.querySelectorAll("*")]
                .filter((e) => e.getBoundingClientRect().right > wide + 1 && !e.closest(".wide, pre"));
              return [`${document.documentElement.scrollWidth} px of ${wide}`,
                ...out.slice(0, 5).map((e) => `${e.tagName}.${e.className}#${e.id}`)];
            }"""
        )
        return told


@contextmanager
def launched(playwright: Playwright) -> Iterator[Browser]:
    """Debian's Chromium, which by itself speaks to nobody."""
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_QUIET))
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def visiting(
    browser: Browser, url: str, *, width: int = 1440, theme: Theme = "light", **more: Any
) -> Iterator[Visitor]:
    """A window without cookies; everything it does is noticed."""
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT}, color_scheme=theme, reduced_motion="reduce", **more
    )
    noticed = Noticed()
    context.expose_binding("fairwayViolation", lambda _, told: noticed.violations.append(told))
    context.add_init_script(_TELL_VIOLATIONS)
    context.on("request", lambda request: _note_request(noticed, request))
    context.on("response", lambda response: _note_response(noticed, response))
    context.on("console", lambda message: _note_message(noticed, message))
    page = context.new_page()
    page.on("pageerror", lambda error: noticed.errors.append(str(error)))
    page.set_default_timeout(40_000)  # a machine that runs other tests beside this one is slow
    try:
        yield Visitor(page, noticed, url)
    finally:
        context.close()


def _note_request(noticed: Noticed, request: Request) -> None:
    found = urlsplit(request.url)
    if found.scheme not in ("data", "blob") and found.hostname not in _LOCAL:
        noticed.outside.append(request.url)


def _note_response(noticed: Noticed, response: Response) -> None:
    if response.status >= 500:
        noticed.failed.append(f"{response.status} {response.url}")


def _note_message(noticed: Noticed, message: ConsoleMessage) -> None:
    if message.type not in ("error", "warning"):
        return
    # That an address answered 401, 403 or 404 is what such a page is for, not a fault of it.
    if message.text.startswith("Failed to load resource") and "status of 4" in message.text:
        return
    noticed.errors.append(message.text)
