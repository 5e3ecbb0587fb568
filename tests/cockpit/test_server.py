"""The cockpit's server: the token, refusals, headers, the shell page and the stream of events."""

import asyncio
import json
import re
import socket
from collections.abc import Mapping
from copy import copy
from urllib.parse import urlsplit

import pytest

from klamm.cockpit.page_api import Cockpit
from klamm.cockpit.page_json import MOST_EXACT, encoded_json
from klamm.cockpit.safety import HEADERS
from klamm.cockpit.server import embedded_json, encoded, event_stream
from klamm.cockpit.source import MAX_WAITING_BYTES, MISSED, NOW, RECORD, Subscription
from support.cockpit import Browser, FixedSource

HOSTILE = "{{now}}</script><script>alert(1)</script><!--\u2028\u2029&\"'"


@pytest.fixture
def source() -> FixedSource:
    return FixedSource({"cluster": {"id": HOSTILE, "kind": "klamm", "version": None}, "brokers": []})


@pytest.fixture
def browser(source: FixedSource) -> Browser:
    """A browser that has opened the printed address."""
    return Browser(Cockpit(source)).opened()


def stranger(browser: Browser) -> Browser:
    """Another browser, of the same server."""
    other = copy(browser)
    other.cookies = {}
    return other


# -- the token ----------------------------------------------------------------------------------------------------


def test_the_token_is_exchanged_for_a_cookie_that_scripts_cannot_use(browser: Browser) -> None:
    client, token = stranger(browser), browser.server.guard.token
    answer = client.get(f"/?token={token}", follow=False)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.split("; ")[1:] == ["HttpOnly", "SameSite=Lax", "Path=/"]
    assert token not in cookie
    assert client.get("/api/now").status == 200


@pytest.mark.parametrize("path", ["/", "/cockpit.js", "/cockpit.css", "/events", "/api/now", "/no-such-path"])
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%ff%00", "?token=%E2%80%A8"])
def test_without_the_token_nothing_is_served(browser: Browser, path: str, query: str) -> None:
    answer = stranger(browser).get(path + query)
    assert answer.status == 401
    assert "address that klamm printed" in answer.text
    assert ('name="token"' in answer.text) == (path == "/")


def test_cookies_of_other_programs_of_the_machine_and_other_cockpits_are_ignored(browser: Browser) -> None:
    [mine] = [f"{name}={value}" for name, value in browser.cookies.items()]
    for others in (
        'a[b]=1; {{"x":1}}; "q',
        "klamm_cockpit_00000000=other",
        "=",
        ";;;",
        "a=b=c; ü=ü",
        "x=" + "y" * 9_000,
    ):
        for cookies in (f"{others}; {mine}", f"{mine}; {others}"):
            assert stranger(browser).get("/api/now", {"cookie": cookies}).status == 200
    assert Browser(Cockpit(FixedSource({}))).get("/api/now", {"cookie": mine}).status == 401


def test_a_token_that_is_kept_opens_the_page_again_after_a_restart(source: FixedSource) -> None:
    first = Browser(Cockpit(source), token="a-token-that-is-kept")
    cookie = first.get("/?token=a-token-that-is-kept", follow=False).headers["Set-Cookie"]
    assert cookie.endswith("; Path=/; Max-Age=2592000")
    second = Browser(Cockpit(source), token="a-token-that-is-kept")
    second.cookies = first.cookies
    assert second.get("/api/now").status == 200
    assert stranger(second).get("/?token=a-token-that-is-kept").status == 200


# -- links --------------------------------------------------------------------------------------------------------

# What Chromium sends when a person follows a link on a page of another site.
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def test_a_link_of_another_page_opens_this_one(browser: Browser) -> None:
    assert stranger(browser).get(f"/?token={browser.server.guard.token}", LINK, follow=False).status == 303
    assert browser.get("/", LINK).status == 200
    assert stranger(browser).get("/", LINK).status == 401


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", LINK | {"sec-fetch-dest": "iframe"}),
        ("/", LINK | {"sec-fetch-mode": "no-cors"}),
        ("/", {"sec-fetch-site": "cross-site"}),
        ("/api/now", LINK),
        ("/cockpit.js", LINK),
        ("/events", LINK),
    ],
)
def test_another_page_has_nothing_but_links(browser: Browser, path: str, headers: dict[str, str]) -> None:
    assert browser.get(path, headers).status == 403


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.1.2.3", "", "[::1", "evil@localhost.x"])
def test_other_names_than_this_machines_are_refused(browser: Browser, host: str) -> None:
    assert browser.get("/api/now", {"host": host}).status == 421
    assert browser.get(f"http://{host}/api/now").status in (400, 421)
    assert browser.get(f"/?token={browser.server.guard.token}", {"host": host}).status == 421


def test_a_page_for_other_machines_answers_to_the_names_of_this_one(source: FixedSource) -> None:
    browser = Browser(Cockpit(source), host="0.0.0.0")
    browser.server.names.of_machine = frozenset(("office.castle.example",))
    for host in ("10.1.2.3:8080", "office.castle.example:8080", "office", "localhost:1"):
        assert browser.get(f"/?token={browser.server.guard.token}", {"host": host}, follow=False).status == 303
    assert browser.get("/", {"host": "evil.example"}).text == (
        "this server does not answer to the name 'evil.example'; --allow-host adds names\n"
    )
    machine, local = browser.server.urls
    assert urlsplit(machine).hostname == socket.gethostname().lower()
    assert local.startswith("http://127.0.0.1:8080/?token=")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8080"},
        {"origin": "http://127.0.0.1:8081"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(browser: Browser, headers: dict[str, str]) -> None:
    assert browser.get("/api/now", headers).status == 403


@pytest.mark.parametrize("path", ["/", "/cockpit.js", "/events", "/api/now", "/no-such-path"])
@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "ODD"])
def test_pages_take_get_only(browser: Browser, path: str, method: str) -> None:
    answer = browser.request(method, path)
    assert answer.status == 405
    assert_safe(answer.headers)


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/static/core.js", "/%2e%2e/%2e%2e/etc/passwd", "/cockpit.js/../core.js", "/core.js"]
)
def test_no_path_leads_to_a_file(browser: Browser, path: str) -> None:
    assert browser.get(path).status == 404


def test_every_answer_has_the_safety_headers(browser: Browser) -> None:
    for path in ("/", "/cockpit.js", "/cockpit.css", "/api/now", "/no-such-path"):
        assert_safe(browser.get(path).headers)
    assert_safe(stranger(browser).get("/").headers)
    assert_safe(browser.get("/", {"host": "evil.example"}).headers)


def assert_safe(headers: Mapping[str, str]) -> None:
    assert {name: headers.get(name) for name in HEADERS} == dict(HEADERS)


# -- the shell ----------------------------------------------------------------------------------------------------


def test_no_text_of_the_cluster_ends_the_script_element_of_the_shell(browser: Browser) -> None:
    page = browser.get("/").text
    assert HOSTILE not in page
    assert page.count("<script") == page.count("</script>") == 3
    first = re.search(r'<script type="application/json" id="first">(.*?)</script>', page)
    assert first is not None
    assert json.loads(first[1])["cluster"]["id"] == HOSTILE


def test_integers_that_a_script_would_round_are_texts() -> None:
    value = {"a": [MOST_EXACT, -MOST_EXACT, MOST_EXACT + 1, -(2**63)], "b": ({"c": 2**70},), "d": True, "e": 0.5}
    expected = {"a": [MOST_EXACT, -MOST_EXACT, str(MOST_EXACT + 1), str(-(2**63))], "b": [{"c": str(2**70)}]}
    assert json.loads(encoded_json(value)) == {**expected, "d": True, "e": 0.5}
    assert json.loads(embedded_json(value)) == {**expected, "d": True, "e": 0.5}


def test_embedded_json_is_plain_ascii_where_markup_could_begin() -> None:
    text = embedded_json({"<!--": HOSTILE})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"<!--": HOSTILE}


def test_the_script_and_the_style_sheet_are_all_files(browser: Browser) -> None:
    script = browser.get("/cockpit.js").text
    assert script.startswith('"use strict"')
    assert "const cockpit = {" in script
    assert 'cockpit.view("now"' in script
    assert "color-scheme" in browser.get("/cockpit.css").text


# -- events -------------------------------------------------------------------------------------------------------


def test_a_stream_sends_what_the_source_publishes_and_says_when_it_ends() -> None:
    async def stream() -> str:
        source = FixedSource({})
        body = event_stream(source)
        text = [await anext(body)]
        source.publish(RECORD, b'{"a":1}')
        source.publish(NOW, b"{}")
        text.append(await anext(body))
        await source.close()
        text += [piece async for piece in body]
        assert not source.subscriptions
        return b"".join(text).decode()

    assert asyncio.run(stream()) == (
        'retry: 1000\n\nevent: record\ndata: {"a":1}\n\nevent: now\ndata: {}\n\nevent: ended\ndata: {}\n\n'
    )


def test_a_page_that_does_not_keep_up_misses_events_and_is_told() -> None:
    subscription = Subscription()
    piece = b" " * (MAX_WAITING_BYTES // 4)
    for _ in range(6):
        subscription.put(RECORD, piece)
        subscription.put(NOW, b"{}")
    events = asyncio.run(subscription.read())
    assert [name for name, _ in events] == [RECORD] * 4 + [MISSED, NOW]
    assert json.loads(events[4][1]) == {"events": 2}
    subscription.put(RECORD, piece)
    assert asyncio.run(subscription.read()) == [(RECORD, piece)]


def test_events_have_one_line_each() -> None:
    assert encoded([("record", b'{"a":"\\n"}')]) == b'event: record\ndata: {"a":"\\n"}\n\n'
