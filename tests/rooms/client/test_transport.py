"""The transport: connections that are kept and replaced, and what it means when there is no answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from tests.rooms.client.scripted import CUT, OK, name_url, serve

from pointsman.client.transport import FOREVER, MAX_BODY_BYTES, Transport
from pointsman.errors import (
    EngineClosed,
    OutcomeUnknown,
    PointsmanError,
    RequestInvalid,
    ServerFailed,
    ServerUnavailable,
    StoreUnavailable,
)

KEYED = {"Idempotency-Key": "1"}


def refused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return name_url(listening)


def test_a_connection_is_kept_for_the_next_request() -> None:
    with serve([OK, OK, OK]) as (transport, server):
        replies = [transport.request("GET", "/a"), transport.request("POST", "/b", body=b"{}"), transport.request("PUT", "/c")]
        assert [(reply.status, reply.body, reply.headers["x-name"]) for reply in replies] == [(200, b"ok", "Value")] * 3
        assert server.accepted == 1
        first, second, third = server.requests
        assert first.startswith(b"GET /a HTTP/1.1\r\n")
        assert b"Content-Type: application/json" in second
        assert b"Content-Length: 0" in third


def test_threads_have_connections_of_their_own_and_share_them_later() -> None:
    with serve(*([OK] * 40 for _ in range(4))) as (transport, server):
        threads = [threading.Thread(target=lambda: [transport.request("GET", "/") for _ in range(10)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.requests) == 40
        assert len(transport._idle) == server.accepted <= 4


@pytest.mark.parametrize("headers", [{}, KEYED], ids=["no key", "key"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_ends_instead_of_an_answer_is_replaced_where_that_is_safe(
    method: str, headers: dict[str, str]
) -> None:
    with serve([OK, CUT], [OK]) as (transport, server):
        transport.request("GET", "/")
        if method == "POST" and not headers:
            with pytest.raises(OutcomeUnknown, match="look before you send it again"):
                transport.request(method, "/", headers=headers)
            assert len(server.requests) == 2
        else:
            assert transport.request(method, "/", headers=headers).body == b"ok"
            assert (len(server.requests), server.accepted) == (3, 2)
            assert server.requests[1] == server.requests[2]


def test_a_connection_that_the_server_has_closed_is_not_used_for_a_change() -> None:
    with serve([OK], [OK]) as (transport, server):
        transport.request("GET", "/")
        idle = transport._idle[0].sock
        while idle.recv(1, socket.MSG_PEEK):
            pass
        assert transport.request("POST", "/").body == b"ok"
        assert server.accepted == 2


@pytest.mark.parametrize(
    ("method", "headers", "expected", "attributes"),
    [
        ("GET", {}, ServerUnavailable, {"may_have_happened": False, "retry_after_seconds": None}),
        ("POST", {"idempotency-key": "1"}, ServerUnavailable, {"may_have_happened": True, "retry_after_seconds": None}),
        ("POST", {}, OutcomeUnknown, {}),
        ("DELETE", {}, OutcomeUnknown, {}),
    ],
)
@pytest.mark.parametrize("answer", [CUT, OK[:10], OK[:-1], OK.replace(b": 2", b": 2000")], ids=["none", "head", "body", "less"])
def test_an_answer_that_is_cut_off(
    method: str, headers: dict[str, str], expected: type[PointsmanError], attributes: dict[str, object], answer: bytes
) -> None:
    with serve([answer]) as (transport, server), pytest.raises(expected) as raised:
        transport.request(method, "/runs?key=secret", headers=headers)
    assert isinstance(raised.value, StoreUnavailable)
    assert vars(raised.value) == attributes
    assert f"{method} {server.url}/runs" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_new_connection_that_is_refused_behind_a_cut_off_change_leaves_open_whether_it_happened() -> None:
    with serve([OK, CUT]) as (transport, server):
        transport.request("GET", "/")
        server._listening.close()
        with pytest.raises(ServerUnavailable) as raised:
            transport.request("POST", "/", headers=KEYED)
        assert raised.value.may_have_happened


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_server_that_does_not_listen(method: str) -> None:
    url = refused_url()
    with pytest.raises(
        ServerUnavailable, match=f"Cannot connect to {url}: Connection refused. Check its address, or start it"
    ) as raised:
        Transport(url).request(method, "/")
    assert not raised.value.may_have_happened


@pytest.mark.parametrize(("method", "expected"), [("GET", ServerUnavailable), ("POST", OutcomeUnknown)])
def test_a_server_that_is_silent(method: str, expected: type[PointsmanError]) -> None:
    with serve([OK]) as (transport, _):
        silent = socket.create_server(("127.0.0.1", 0))
        with silent, pytest.raises(expected, match=r"had no answer within 0\.2 seconds"):
            Transport(name_url(silent)).request(method, "/", timeout_seconds=0.2)
        assert transport.request(method, "/", timeout_seconds=FOREVER).body == b"ok"


def test_what_does_not_speak_http_is_named() -> None:
    with (
        serve([b"220 mail.example.org ESMTP\r\n"]) as (transport, _),
        pytest.raises(ServerFailed, match="does not answer in HTTP"),
    ):
        transport.request("GET", "/")
    with serve([OK]) as (_, server), pytest.raises(ServerUnavailable, match="its URL begins with http://"):
        Transport(server.url.replace("http", "https")).request("GET", "/")


def test_a_redirect_is_an_answer_and_not_followed() -> None:
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with serve([moved]) as (transport, _):
        reply = transport.request("GET", "/")
        assert (reply.status, reply.headers["location"]) == (307, "http://127.0.0.1:1/")


@pytest.mark.parametrize("head", [b"Content-Length: 999999999999", b"Transfer-Encoding: chunked"], ids=["announced", "chunked"])
def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    assert MAX_BODY_BYTES > 16 << 20
    monkeypatch.setattr("pointsman.client.transport.MAX_BODY_BYTES", 1000)
    answer = (
        b"HTTP/1.1 200 OK\r\n"
        + head
        + b"\r\n\r\n"
        + b"190\r\n"
        + b"x" * 400
        + b"\r\n"
        + (b"190\r\n" + b"x" * 400 + b"\r\n") * 9
    )
    with serve([answer], [OK]) as (transport, _):
        with pytest.raises(ServerFailed, match="more than 1,000 bytes"):
            transport.request("GET", "/")
        assert transport.request("GET", "/").body == b"ok"


def test_a_refusal_arrives_although_the_server_does_not_read_the_body() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with serve([refusal]) as (transport, _):
        assert transport.request("POST", "/", body=b" " * (32 << 20)).status == 413


def test_a_stream_gives_what_has_arrived_and_ends_with_the_answer() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
    with serve([chunked]) as (transport, _), transport.stream("GET", "/") as (reply, chunks):
        assert (reply.status, reply.body) == (200, b"")
        assert b"".join(chunks) == b"abcde"


def test_a_stream_that_is_cut_off_says_so() -> None:
    for begun in (b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", b"Content-Length: 9\r\n\r\nab"):
        with serve([b"HTTP/1.1 200 OK\r\n" + begun]) as (transport, _), transport.stream("GET", "/") as (_, chunks):
            assert next(chunks) == b"ab"
            with pytest.raises(ServerUnavailable):
                next(chunks)


def test_the_answer_of_a_stream_that_is_refused_is_whole() -> None:
    with serve([OK.replace(b"200 OK", b"404 Not Found")]) as (transport, _), transport.stream("GET", "/") as (reply, chunks):
        assert (reply.status, reply.body, list(chunks)) == (404, b"ok", [])


def close_during(use: Callable[[Transport], object], answer: bytes) -> BaseException:
    """What `use` raises when another thread closes the transport while it waits."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        transport = Transport(name_url(listening), timeout_seconds=FOREVER)
        raised: list[BaseException] = []

        def run() -> None:
            try:
                use(transport)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is compared
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        connected, _ = listening.accept()
        with connected:
            connected.recv(1000)
            connected.sendall(answer)
            transport.close()
            thread.join()
    return raised[0]


def read_stream(transport: Transport) -> None:
    with transport.stream("GET", "/") as (_, chunks):
        list(chunks)


def test_closing_ends_whatever_waits() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"
    unbounded = b"HTTP/1.0 200 OK\r\n\r\nab"
    assert isinstance(close_during(lambda transport: transport.request("POST", "/"), b""), EngineClosed)
    for answer in (b"", head, unbounded):
        assert isinstance(close_during(read_stream, answer), EngineClosed), answer
    transport = Transport(refused_url())
    transport.close()
    with pytest.raises(EngineClosed):
        transport.request("GET", "/")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "localhost:8642",
            "ftp://a",
            "http://",
            "http:///a",
            "http://a:port",
            "http://a:99999",
            "http://a:0",
            "http://[::1",
        ),
        *("http://a?key=pm_secret", "http://a#b", "http://a\n", "http://a b", "unix:///run/pointsman"),
        *("http://ada:pm_secret@a", "https://pm_secret@a"),
    ],
)
def test_a_url_that_is_not_that_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(RequestInvalid, match="url: ") as raised:
        Transport(url)
    assert "secret" not in str(raised.value)


def test_a_path_behind_the_host_is_kept() -> None:
    with serve([OK]) as (transport, server):
        behind = Transport(f"{server.url}/pointsman/")
        behind.request("GET", "/runs?a=1")
        assert behind.url == f"{transport.url}/pointsman"
        assert server.requests[0].startswith(b"GET /pointsman/runs?a=1 ")
        behind.close()


def test_the_key_is_sent_and_shown_nowhere() -> None:
    key = "pm_secret"
    with serve([OK, CUT], [CUT]) as (_, server):
        transport = Transport(server.url, key=key, actor="Zoë")
        transport.request("GET", "/")
        with pytest.raises(ServerUnavailable) as raised:
            transport.request("GET", "/")
        assert b"Authorization: Bearer pm_secret\r\n" in server.requests[0]
        assert "Pointsman-Actor: Zoë\r\n".encode() in server.requests[0]
        assert key not in f"{transport!r} {transport.url} {raised.value}"
        transport.close()


@pytest.mark.parametrize("key", ["", "pm_secret\r\nX: y", "pm_secret two", "pm_sécret"])
def test_a_key_that_cannot_be_one_is_refused_unseen(key: str) -> None:
    with pytest.raises(RequestInvalid) as raised:
        Transport("http://127.0.0.1:1", key=key)
    assert "cret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_an_actor_is_one_line() -> None:
    for actor in ("", "  ", "ada\r\nX: y"):
        with pytest.raises(RequestInvalid, match="one person"):
            Transport("http://127.0.0.1:1", actor=actor)
