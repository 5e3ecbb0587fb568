"""The cockpit's server: the token, refusals, headers, the shell page and the stream of events."""

import asyncio
import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from klamm.tools.cockpit.answers import Cockpit
from klamm.tools.cockpit.exact import MOST_EXACT, encoded_json
from klamm.tools.cockpit.safety import HEADERS, Guard, is_own_host
from klamm.tools.cockpit.server import Streams, embedded_json, encoded, make_app
from klamm.tools.cockpit.source import MAX_WAITING_BYTES, MISSED, NOW, RECORD, Subscription
from support.cockpit import FixedSource

HOSTILE = "{{now}}</script><script>alert(1)</script><!--\u2028\u2029&\"'"


@pytest.fixture
def source() -> FixedSource:
    return FixedSource({"cluster": {"id": HOSTILE, "kind": "klamm", "version": None}, "brokers": []})


@pytest.fixture
def app(source: FixedSource) -> Guard:
    return make_app(Cockpit(source), "127.0.0.1")


@pytest.fixture
def browser(app: Guard) -> TestClient:
    """A browser that has opened the printed address."""
    client = stranger(app)
    assert client.get(f"/?token={app.token}").status_code == 200
    return client


def stranger(app: Guard) -> TestClient:
    return TestClient(app, base_url="http://127.0.0.1:8080")


# -- the token ----------------------------------------------------------------------------------------------------


def test_the_token_is_exchanged_for_a_cookie_that_scripts_and_other_sites_cannot_use(app: Guard) -> None:
    client = stranger(app)
    answer = client.get(f"/?token={app.token}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert app.token not in cookie
    assert client.get("/api/now").status_code == 200


@pytest.mark.parametrize("path", ["/", "/cockpit.js", "/cockpit.css", "/events", "/api/now", "/no-such-path"])
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%ff%00", "?token=%E2%80%A8"])
def test_without_the_token_nothing_is_served(app: Guard, path: str, query: str) -> None:
    answer = stranger(app).get(path + query)
    assert answer.status_code == 401
    assert "address that klamm printed" in answer.text


def test_cookies_of_other_programs_of_the_machine_and_other_cockpits_are_passed_over(app: Guard) -> None:
    answer = stranger(app).get(f"/?token={app.token}", follow_redirects=False)
    mine = answer.headers["set-cookie"].partition(";")[0]
    for others in ('a[b]=1; {{"x":1}}; "q', "klamm_cockpit_00000000=other", "=", ";;;", "a=b=c; ü=ü"):
        for cookies in (f"{others}; {mine}", f"{mine}; {others}"):
            found = stranger(app).get("/api/now", headers={"cookie": cookies.encode()})
            assert found.status_code == 200
    other = make_app(Cockpit(FixedSource({})), "127.0.0.1")
    assert stranger(other).get("/api/now", headers={"cookie": mine}).status_code == 401


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.1.2.3", "", "[::1", "evil@localhost.x"])
def test_other_names_of_this_machine_are_refused(browser: TestClient, host: str) -> None:
    answer = browser.get("/api/now", headers={"host": host})
    assert answer.status_code == 421


@pytest.mark.parametrize(
    ("header", "listens_on", "is_own"),
    [
        ("127.0.0.1:8080", "127.0.0.1", True),
        ("localhost:1", "127.0.0.1", True),
        ("localhost.", "127.0.0.1", True),
        ("[::1]:8080", "127.0.0.1", True),
        ("10.0.0.1:8080", "0.0.0.0", True),
        ("10.0.0.1:8080", "127.0.0.1", False),
        ("broker.example:8080", "broker.example", True),
        ("broker.example:8080", "0.0.0.0", False),
        ("broker.example", "10.0.0.1", False),
        ("", "0.0.0.0", False),
    ],
)
def test_hosts(header: str, listens_on: str, is_own: bool) -> None:
    assert is_own_host(header, listens_on) is is_own


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
def test_requests_of_other_sites_are_refused(browser: TestClient, headers: dict[str, str]) -> None:
    assert browser.get("/api/now", headers=headers).status_code == 403


@pytest.mark.parametrize("path", ["/", "/cockpit.js", "/events", "/api/now", "/no-such-path"])
@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "ODD"])
def test_pages_take_get_only(browser: TestClient, path: str, method: str) -> None:
    answer = browser.request(method, path)
    assert answer.status_code == 405
    assert_safe(answer.headers)


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/static/core.js", "/%2e%2e/%2e%2e/etc/passwd", "/cockpit.js/../core.js", "/core.js"]
)
def test_no_path_leads_to_a_file(browser: TestClient, path: str) -> None:
    assert browser.get(path).status_code == 404


def test_every_answer_has_the_safety_headers(app: Guard, browser: TestClient) -> None:
    for path in ("/", "/cockpit.js", "/cockpit.css", "/api/now", "/no-such-path"):
        assert_safe(browser.get(path).headers)
    assert_safe(stranger(app).get("/").headers)
    assert_safe(browser.get("/", headers={"host": "evil.example"}).headers)


def assert_safe(headers: Any) -> None:
    assert {name: headers.get(name) for name in HEADERS} == dict(HEADERS)


# -- the shell ----------------------------------------------------------------------------------------------------


def test_no_text_of_the_cluster_ends_the_script_element_of_the_shell(browser: TestClient) -> None:
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


def test_the_script_and_the_style_sheet_are_all_files(browser: TestClient) -> None:
    script = browser.get("/cockpit.js").text
    assert script.startswith('"use strict"')
    assert "const cockpit = {" in script
    assert 'cockpit.view("now"' in script
    assert "color-scheme" in browser.get("/cockpit.css").text


# -- events -------------------------------------------------------------------------------------------------------


def test_a_stream_sends_what_the_source_publishes_and_says_when_it_ends() -> None:
    async def stream() -> str:
        source = FixedSource({})
        body = Streams(source).open().body_iterator  # type: ignore[attr-defined]
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
