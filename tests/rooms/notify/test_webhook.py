"""Webhooks: what is posted and signed, which addresses are refused, and which answers count."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from tests.rooms.notify.receiver import Receiver
from tests.rows import each_row

from pointsman.errors import DeliveryFailed
from pointsman.notify.webhook import is_public, post, read_secret

AT = datetime(2026, 11, 18, 12, 30, 0, 900_000, tzinfo=UTC)
OLD, NEW = b"o" * 24, bytes(range(64))
PRIVATE = (
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
    "::", "::1", "fe80::1", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::a00:1", "2002:7f00:1::", "2002:a00:1::",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "64:ff9b:1::1",
)  # fmt: skip
PUBLIC = (
    "8.8.8.8", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "2002:808:808::",
    "64:ff9b::808:808",
)  # fmt: skip


def write_secret(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


async def send(url: str, body: bytes = b'{"type":"run_ended"}', *, secrets: str | None = None, private: bool = True) -> None:
    async with asyncio.timeout(30):
        await post(url, body, message_id="msg_1", now=AT, secrets=secrets, allow_private=private)


async def refuse(url: str, **options: Any) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        await send(url, **options)
    return failed.value


async def test_a_message_is_posted_with_the_headers_of_standard_webhooks(receiver: Receiver) -> None:
    body = '{"text":"ünï\\n😀"}'.encode()
    await send(receiver.url("/hook/a?b=c%20d"), body, secrets=f"{write_secret(OLD)} {write_secret(NEW)}")
    (got,) = receiver.received
    assert (got.path, got.body) == ("/hook/a?b=c%20d", body)
    assert (got.headers["webhook-id"], got.headers["webhook-timestamp"]) == ("msg_1", str(int(AT.timestamp())))
    assert got.headers["content-type"] == "application/json"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert (got.is_signed_with(OLD), got.is_signed_with(NEW), got.is_signed_with(b"x" * 24)) == (True, True, False)


async def test_without_a_secret_nothing_is_signed(receiver: Receiver) -> None:
    await send(receiver.url())
    assert "webhook-signature" not in receiver.received[0].headers


@each_row(
    "text",
    ["", "whsec_", "secret", "whsec_!!!!", write_secret(b"x" * 23), write_secret(b"x" * 65), write_secret(OLD).upper()],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(DeliveryFailed) as failed:
        read_secret(text)
    assert failed.value.is_final
    assert len(text) < 7 or text not in str(failed.value)


def test_a_secret_is_what_follows_its_prefix() -> None:
    assert read_secret(write_secret(NEW)) == NEW


@each_row(("address", "public"), [(each, False) for each in PRIVATE] + [(each, True) for each in PUBLIC])
def test_only_addresses_of_the_internet_are_public(address: str, *, public: bool) -> None:
    assert is_public(ip_address(address)) is public


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0"]
)
async def test_this_machine_is_refused_under_all_its_names(receiver: Receiver, host: str) -> None:
    failed = await refuse(receiver.url(host=host), private=False)
    assert "is at a private address" in str(failed) or "cannot be resolved" in str(failed)
    assert receiver.received == []


async def test_a_name_that_leads_to_private_addresses_is_refused_and_public_ones_of_it_remain(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    answers = resolve_to(monkeypatch, ["10.0.0.1", "127.0.0.1"])
    failed = await refuse(receiver.url(host="inside.example"), private=False)
    assert str(failed).startswith("inside.example is at a private address (10.0.0.1), which is refused.")
    assert (failed.is_final, answers, receiver.received) == (True, [], [])


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    answers = resolve_to(monkeypatch, ["127.0.0.1"], ["203.0.113.9"])
    await send(receiver.url(host="moving.example"))
    assert (len(receiver.received), receiver.received[0].headers["host"]) == (1, f"moving.example:{receiver.port}")
    assert len(answers) == 1, "the name was looked up a second time"


def resolve_to(monkeypatch: pytest.MonkeyPatch, *lookups: list[str]) -> list[list[str]]:
    """Let the names of .example have these addresses, one list for each look-up; what has not been looked up."""
    left, real = list(lookups), socket.getaddrinfo

    def look(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if not str(host).endswith(".example"):
            return real(host, port, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in left.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    return left


@each_row("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda _: status
    failed = await refuse(receiver.url("/hook/token"))
    assert f"answered {status}" in str(failed)
    assert "Redirects are not followed" in str(failed)
    assert ("token" in str(failed), failed.is_final) == (False, False)
    assert {got.path for got in receiver.received} == {"/hook/token"}


@each_row(("status", "ends"), [*((each, False) for each in (400, 404, 429, 500, 503)), (410, True)])
async def test_an_error_is_tried_again_but_410_is_the_end(receiver: Receiver, status: int, *, ends: bool) -> None:
    receiver.answer = lambda _: status
    assert (await refuse(receiver.url())).is_final is ends


@each_row("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_a_delivery(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda _: status
    await send(receiver.url())


@each_row(
    "answer",
    [b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.0 200 \xff\r\n", b"HTTP/1.1 200\n"],
)
async def test_of_an_answer_only_the_status_counts(answer: bytes) -> None:
    async with answering(answer) as port:
        await send(f"http://127.0.0.1:{port}/")


@each_row(
    ("answer", "said"),
    [
        (b"", "The receiver closed the connection without an answer."),
        (b"HTTP/1.1 ", "The receiver closed the connection without an answer."),
        (b"SSH-2.0-x\r\n", "The receiver did not answer with HTTP."),
        (b"HTTP/1.1 2OO OK\r\n", "The receiver did not answer with HTTP."),
        (b"x" * 100_000, "The receiver did not answer with HTTP."),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, "The receiver gave no final answer."),
        (b"HTTP/1.1 500 \x1b[31mred\r\n\r\n", "/… answered 500 Internal Server Error."),
    ],
)
async def test_whatever_else_comes_is_an_error_in_our_words(answer: bytes, said: str) -> None:
    async with answering(answer) as port:
        assert str(await refuse(f"http://127.0.0.1:{port}/")).removeprefix(f"http://127.0.0.1:{port}") == said


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[int]:
    """A server that answers each request with these bytes, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} -out {certificate} -days 1"
    await (await asyncio.create_subprocess_exec(*command.split(), stderr=asyncio.subprocess.DEVNULL)).wait()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(1))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        failed = await refuse(f"https://localhost:{server.sockets[0].getsockname()[1]}/hook")
    assert "self-signed certificate" in str(failed)
    assert got == []


async def test_nobody_at_the_address_is_an_error_to_try_again() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    failed = await refuse(f"http://127.0.0.1:{port}/hook")
    assert (str(failed).startswith(f"Cannot connect to 127.0.0.1, port {port}"), failed.is_final) == (True, False)
