"""A headless Chromium for tests of pages. A pytest plugin; tests/conftest.py loads it.

One browser serves the tests of a file; `pages` gives each test contexts of its own, and judges at its end what every
page must keep to: no request to anywhere but its own server, no error in the console, nothing that the content policy
refused. The browser ends with the file, because playwright's loop runs in the thread in which those of the next file
run loops of their own. Without Debian's package `chromium` (scripts/system-packages) these tests are skipped.
"""

import os
import shutil
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Playwright

# A page that does not come to show something in this time is broken, even on a busy machine.
PATIENCE_MS = 120_000

# Each window would load two pages of Chromium's own for its address bar, and a process for a site that no test opens.
# Those take half of the processor time of a test.
UNUSED_FEATURES = [
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "SpareRendererForSitePerProcess",
    # Chromium obeys the last list, so this one says again what playwright turns off.
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled",
    "PreconnectToSearch",
]  # fmt: skip


def chromium() -> str | None:
    """Where Chromium is on this machine."""
    return shutil.which("chromium")


def launch(playwright: "Playwright") -> "Browser":
    """Chromium, headless, without what only a person at its window would use."""
    arguments = [f"--disable-features={','.join(UNUSED_FEATURES)}"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # The sandbox refuses to run as root.
    return playwright.chromium.launch(executable_path=chromium(), args=arguments)


@pytest.fixture(scope="module")
def browser() -> Generator["Browser"]:
    """Chromium, headless."""
    if chromium() is None:
        pytest.skip("no chromium on this machine: scripts/system-packages installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = launch(playwright)
        yield opened
        opened.close()


def wait_until(page: "Page", expression: str) -> None:
    """Waits until a JavaScript expression is true.

    playwright's `wait_for_function` lets the page evaluate what is not true at once; klamm's content policy refuses it.
    """
    ends_s = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < ends_s, f"never true: {expression}"
        page.wait_for_timeout(10)


class Pages:
    """Opens pages, each in a context of its own."""

    def __init__(self, browser: "Browser") -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.requests: list[str] = []
        self.faults: list[str] = []

    def open(self, url: str, *, width: int = 1280, height: int = 900, **options: Any) -> "Page":
        """A page that has loaded `url`. `options` are those of playwright's `new_context`."""
        context = self._browser.new_context(viewport={"width": width, "height": height}, **options)
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.goto(url, wait_until="domcontentloaded")
        return page

    def _heard(self, kind: str, text: str) -> None:
        # A violation of the content policy is an error of the console.
        if kind in ("error", "warning"):
            self.faults.append(text)

    def judge(self) -> None:
        foreign = [
            url for url in self.requests if urlsplit(url).hostname != "127.0.0.1" and not url.startswith("data:")
        ]
        assert not foreign, f"the page asked other servers: {foreign}"
        assert not self.faults, "\n".join(self.faults)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def pages(browser: "Browser") -> Generator[Pages]:
    opened = Pages(browser)
    yield opened
    opened.close()
    opened.judge()
