"""Bad input and abuse: whatever is sent, the answer is a problem that says what was wrong, and never a 5xx."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest
from tests.system.server.harness import Client, Reply

JSON = {"Content-Type": "application/json"}
FLOW = "name: a\ntasks: {a: {run: 'true'}}"


def post(client: Client, content: bytes, path: str = "/runs", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.send("POST", path, content, {**JSON, **named})


@pytest.mark.parametrize(
    ("content", "status", "problem"),
    [
        (b"{", 400, "malformed-json"),
        (b"\xff\xfe", 400, "malformed-json"),
        (b'{"flow": "\\ud800"}', 400, "malformed-json"),
        (b'{"flow": "\xed\xa0\x80"}', 400, "malformed-json"),
        (b'{"flow": 1e999}', 400, "malformed-json"),
        (b"[" * 100_000, 400, "malformed-json"),
        (b'{"inputs":' * 5_000 + b"1" + b"}" * 5_000, 400, "malformed-json"),
        (b'{"flow": "a", "inputs": ' + b"[" * 300 + b"]" * 300 + b"}", 400, "malformed-json"),
        (b"[]", 422, "invalid-request"),
        (b"null", 422, "invalid-request"),
        (b"{}", 422, "invalid-request"),
        (b'{"flow": "name: \\u0000"}', 422, "invalid-request"),
        (b'{"flow": 7, "x\\u0000": 1}', 422, "invalid-request"),
        (b'{"flow": "a: b", "inputs": {"n": 123456789012345678901234567890}}', 422, "invalid-request"),
        (b'{"flow": "&a [*a, *a]"}', 422, "flow-invalid"),
        (b'{"flow": "- 1"}', 422, "flow-invalid"),
        (b'{"flow": ""}', 422, "flow-invalid"),
    ],
)
def test_a_body_that_is_no_request_is_refused(client: Client, content: bytes, status: int, problem: str) -> None:
    reply = post(client, content)
    client.check("POST", "/runs", reply)
    assert (reply.status, reply.problem) == (status, problem), reply


def test_a_body_over_the_limit_is_refused_before_it_is_read(client: Client) -> None:
    parts = urlsplit(client.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as connection:
        head = "POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999999999\r\n\r\n"
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(100), "although nothing of the body was sent"
    whole = json.dumps({"flow": "x" * (17 << 20)}).encode()
    connection_2 = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    try:  # in chunks, so that nothing says how long it is
        connection_2.request("POST", "/runs", iter([whole[: 1 << 20]] * 17), JSON, encode_chunked=True)
        assert connection_2.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server does not wait for the rest
    finally:
        connection_2.close()


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_read(client: Client, media_type: str) -> None:
    reply = post(client, json.dumps({"flow": FLOW}).encode(), Content_Type=media_type)
    assert (reply.status, reply.problem) == (415, "unsupported-media-type")


def test_compressed_bodies_are_refused(client: Client) -> None:
    assert post(client, b"\x1f\x8b", Content_Encoding="gzip").problem == "unsupported-media-type"


@pytest.mark.parametrize(
    "name",
    [
        "%00",
        "..",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%5c..%5c",
        "%ff%fe",
        "x" * 5_000,
        "%F0%9F%92%A9",
        "'; DROP TABLE run; --",
    ],
)
def test_odd_ids_are_not_found(client: Client, name: str) -> None:
    path = name.replace(" ", "%20")
    for template in ("/runs/{}", "/api/jobs/{}", "/api/tasks/{}", "/api/v1/machines/{}", "/api/v1/history/{}", "/problems/{}"):
        assert client.send("GET", template.format(path)).status == 404, template
    assert client.send("POST", f"/api/supervisor/workers/{path}/pause").status == 404


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=1&limit=2", "limit=99999999999999999999", "speed=1", "after=%00"]
)
def test_odd_queries_are_refused(client: Client, query: str) -> None:
    reply = client.get(f"/runs?{query}")
    assert (reply.status, reply.problem) == (422, "invalid-request")


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "localhost.evil", "", "[", "127.0.0.1@evil"])
def test_a_name_of_another_site_is_refused(client: Client, host: str) -> None:
    reply = client.send("GET", "/runs", headers={"Host": host})
    assert reply.status in (400, 403)
    assert reply.status == 400 or reply.problem == "host-refused"


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://example.org"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://localhost:1"}],
)
def test_a_page_of_another_site_is_refused(client: Client, headers: dict[str, str]) -> None:
    reply = client.send("POST", "/runs", json.dumps({"flow": FLOW}).encode(), {**JSON, **headers})
    assert (reply.status, reply.problem) == (403, "origin-refused")
    assert client.send("POST", "/runs/x/cancel", headers=headers).status == 403


def test_a_page_of_the_server_itself_is_served(client: Client) -> None:
    assert client.get("/runs", Origin=client.url, Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("key", ["", " ", "x" * 300])
def test_odd_idempotency_keys_are_refused(client: Client, key: str) -> None:
    reply = client.post("/runs", {"flow": FLOW}, idempotency_key=key)
    assert (reply.status, reply.problem) == (422, "invalid-request")


@pytest.mark.parametrize("key", [7, None, ["a"], "\0"])
def test_odd_request_ids_are_refused_or_none(client: Client, key: object) -> None:
    reply = client.post("/runs", {"flow": FLOW, "request_id": key})
    assert reply.status == (201 if key is None else 422)


def test_many_headers_do_no_harm(client: Client) -> None:
    headers = {f"X-Header-{number}": "x" for number in range(10_000)}
    with contextlib.suppress(ConnectionError):
        assert client.send("GET", "/healthz", headers=headers).status in (200, 400, 431)
    assert client.get("/healthz").status == 200


def test_head_has_the_headers_of_get_and_no_body(client: Client) -> None:
    for path in ("/healthz", "/runs", "/api/v1/runs/run_1"):
        got, head = client.send("GET", path), client.send("HEAD", path)
        assert (head.status, head.text) == (got.status, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
    assert client.send("HEAD", "/api/v1/events/stream").status == 405


def test_unknown_paths_and_methods_are_problems(client: Client) -> None:
    assert client.get("/api/v2/runs").problem == "no-such-route"
    refused = client.call("DELETE", "/runs")
    assert (refused.problem, refused.headers["allow"]) == ("method-not-allowed", "GET, HEAD, POST")
    assert client.get("/problems/key-reused").json["status"] == 422


def test_nothing_of_this_has_left_anything_wrong(client: Client) -> None:
    assert client.get("/readyz").json == {"status": "ready"}
