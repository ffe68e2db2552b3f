"""What stands before the application: TLS, proxies, and clients that are too slow."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from fastapi import FastAPI, Request
from tests.system.server.harness import Client, start
from tests.system.server.test_keys import EVERY, create_keys, serve, with_key

from pointsman.server.listener import Listener, open_socket


def make_certificate(folder: Path, name: str = "server", password: bytes | None = None) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pointsman")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    signed = builder.add_extension(address, critical=False).sign(key, SHA256())
    certificate_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    certificate_file.write_bytes(signed.public_bytes(Encoding.PEM))
    protection = BestAvailableEncryption(password) if password else NoEncryption()
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection))
    return certificate_file, key_file


@pytest.mark.parametrize("together", [False, True], ids=["two files", "one file"])
def test_with_a_certificate_the_server_speaks_https_only(tmp_path: Path, database_url: str, *, together: bool) -> None:
    certificate, key = make_certificate(tmp_path)
    if together:
        both = tmp_path / "both.pem"
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
    flags = ["--tls-cert", str(both)] if together else ["--tls-cert", str(certificate), "--tls-key", str(key)]
    with start("serve", tmp_path, database_url, *flags) as (client, _):
        assert client.url.startswith("https://127.0.0.1:")
        with pytest.raises(ssl.SSLCertVerificationError):
            client.send("GET", "/runs")
        client.tls = ssl.create_default_context(cafile=str(certificate))
        assert client.get("/runs").status == 200
        assert client.get("/runs", origin=client.url).status == 200
        assert client.get("/runs", origin="https://example.org").problem == "origin-refused"
        refused = client.get("/runs", host="example.org")
        assert (refused.problem, "https://127.0.0.1:" in refused.json["detail"]) == ("host-refused", True)
        with pytest.raises(OSError):  # noqa: PT011 - whichever the platform has for a connection that was cut
            Client(client.url.replace("https", "http")).send("GET", "/runs")


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path, sqlite_url: str) -> None:
    certificate, key = make_certificate(tmp_path)
    _, other = make_certificate(tmp_path, "other")
    _, locked = make_certificate(tmp_path, "locked", b"secret")
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("no certificate")
    for flags, named in (
        (["--tls-cert", missing, "--tls-key", key], missing),
        (["--tls-cert", certificate, "--tls-key", missing], missing),
        (["--tls-cert", text, "--tls-key", key], text),
        (["--tls-cert", certificate, "--tls-key", other], other),
        (["--tls-cert", certificate, "--tls-key", locked], locked),
        (["--tls-cert", certificate], certificate),
        (["--tls-key", key], "--tls-cert"),
    ):
        refused = serve(tmp_path, sqlite_url, "--port", "0", *map(str, flags))
        assert refused.returncode == 2, (flags, refused.stderr)
        assert str(named) in refused.stderr, flags
        assert "Traceback" not in refused.stderr


def test_a_proxy_needs_keys_and_an_address(tmp_path: Path, sqlite_url: str) -> None:
    refused = serve(tmp_path, sqlite_url, "--port", "0", "--proxy", "127.0.0.1")
    assert (refused.returncode, "pointsman key create" in refused.stderr) == (2, True)
    for wrong in ("*", "proxy.example.org", "10.0.0.1/8", ""):
        refused = serve(tmp_path, sqlite_url, "--port", "0", "--proxy", wrong)
        assert refused.returncode == 2, wrong
        assert "--proxy" in refused.stderr, wrong


def test_behind_a_proxy_each_request_needs_a_key(tmp_path: Path, database_url: str) -> None:
    (key,) = create_keys(database_url, [("default", "ada", EVERY)])
    with start("serve", tmp_path, database_url, "--proxy", "127.0.0.1", "--proxy", "10.0.0.0/8") as (client, _):
        assert client.get("/runs", x_forwarded_proto="https", x_forwarded_for="192.0.2.1").problem == "unauthenticated"
        assert with_key(client, key).get("/runs", x_forwarded_proto="https", x_forwarded_for="192.0.2.1").status == 200


def test_forwarded_headers_count_only_from_a_proxy_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    application = FastAPI()

    @application.get("/")
    async def tell(request: Request) -> dict[str, str]:
        return {"scheme": request.url.scheme, "client": request.client.host if request.client else ""}

    async def ask(*proxies: str) -> object:
        listener = Listener(application, open_socket("127.0.0.1", 0), lambda: None, proxies=proxies)
        serving = asyncio.create_task(listener.serve())
        headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
        reply = await asyncio.to_thread(Client(listener.url).send, "GET", "/", None, headers)
        listener.stop()
        await serving
        return reply.json

    trusted = {"scheme": "https", "client": "192.0.2.1"}
    assert asyncio.run(ask()) == asyncio.run(ask("10.0.0.0/8")) == {"scheme": "http", "client": "127.0.0.1"}
    assert asyncio.run(ask("127.0.0.1/32")) == asyncio.run(ask("10.0.0.0/8", "127.0.0.0/8")) == trusted


async def test_a_client_that_is_slow_to_send_headers_is_cut_off_and_one_with_a_slow_body_is_not() -> None:
    application = FastAPI()

    @application.post("/")
    async def measure(request: Request) -> int:
        return len(await request.body())

    listener = Listener(application, open_socket("127.0.0.1", 0), lambda: None, header_seconds=0.3)
    serving = asyncio.create_task(listener.serve())
    host, port = listener.listening.getsockname()
    slow_body, its_writer = await asyncio.open_connection(host, port)
    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"
    its_writer.write(request + b"a")
    await its_writer.drain()
    for begun in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n"):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(begun)
        with suppress(ConnectionResetError):
            assert await reader.read() == b"", "it was closed without an answer"
        writer.close()
    its_writer.write(b"bc")
    assert (await slow_body.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    await slow_body.readuntil(b"\r\n\r\n3")
    its_writer.write(request[:20])
    with suppress(ConnectionResetError):
        assert await slow_body.read() == b"", "the second request of a connection has no more time than the first"
    its_writer.close()
    listener.stop()
    await serving
