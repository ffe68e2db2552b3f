"""Webhooks: one signed POST to an address that was checked, as Standard Webhooks describes it.

    name ── resolve ──▶ addresses ── only public ones ──▶ connect to that address ── TLS for the name ──▶ POST, status line

The address that was checked is the one that is connected to, so a name cannot lead elsewhere a moment later. Redirects are not
followed. Of an answer, only its first line is read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pointsman import __version__
from pointsman.errors import DeliveryFailed
from pointsman.settings import show_host

if TYPE_CHECKING:
    import ssl

PREFIX = "whsec_"
SHORTEST_SECRET, LONGEST_SECRET = 24, 64
"""In bytes."""
NAT64 = IPv6Network("64:ff9b::/96")
LONGEST_LINE = 8192
INTERIM = 200
MOST_INTERIM = 10
"""Answers below 200 come before the one that counts."""


async def post(url: str, body: bytes, *, message_id: str, now: datetime, secrets: str | None, allow_private: bool) -> None:
    """Post a message; raises DeliveryFailed unless the receiver accepts it. The caller limits how long that may take."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    headers = {
        "Host": parts.netloc,
        "User-Agent": f"pointsman/{__version__}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **sign(body, message_id, now, secrets),
    }
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    addresses = check_addresses(host, await _resolve(host, port), allow_private=allow_private)
    reader, writer = await _connect(addresses, port, host, secure=secure)
    try:
        writer.write("\r\n".join(lines).encode("ascii") + body)
        _judge(await _read_status(reader), show_host(url))
    except OSError as error:
        raise DeliveryFailed(f"{show_host(url)} closed the connection: {error.strerror or error}") from None
    finally:
        writer.transport.abort()  # what else it has to say is not read


def sign(body: bytes, message_id: str, now: datetime, secrets: str | None) -> dict[str, str]:
    """The headers of a message: with several secrets, separated by spaces, one signature each, so that they can be changed."""
    timestamp = str(int(now.timestamp()))
    headers = {"webhook-id": message_id, "webhook-timestamp": timestamp}
    if secrets is not None:
        signed = f"{message_id}.{timestamp}.".encode() + body
        digests = [hmac.new(read_secret(secret), signed, hashlib.sha256).digest() for secret in secrets.split()]
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers


def read_secret(text: str) -> bytes:
    """The bytes of `whsec_…`; no message repeats it."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True) if text.startswith(PREFIX) else b""
    except (binascii.Error, ValueError):
        secret = b""
    if not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
        message = f"The secret is not {PREFIX} and {SHORTEST_SECRET} to {LONGEST_SECRET} bytes in base64."
        raise DeliveryFailed(f'{message} Make one: echo "{PREFIX}$(openssl rand -base64 32)"', is_final=True)
    return secret


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the internet: not of this machine, of a private network, of a link, or of a group.

    An address that carries another one, such as ::ffff:127.0.0.1, is judged by that.
    """
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.sixtofour is not None:
            return is_public(address.sixtofour)
        if address.teredo is not None or address.is_site_local:
            return False
        if address in NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        if int(address) >> 32 == 0:  # ::127.0.0.1, an old way to write IPv4 addresses
            return False
    return address.is_global and not (
        address.is_multicast or address.is_loopback or address.is_link_local or address.is_unspecified or address.is_reserved
    )


def check_addresses(host: str, addresses: Sequence[str], *, allow_private: bool) -> list[str]:
    """Those that may be connected to; raises DeliveryFailed if none is left."""
    allowed = [each for each in addresses if allow_private or is_public(ip_address(each))]
    if not allowed:
        message = f"{host} is at a private address ({addresses[0]}), which is refused."
        raise DeliveryFailed(
            f"{message} To allow it, declare the target in pointsman.toml, with allow_private = true.", is_final=True
        )
    return allowed


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses of a name. A resolver may hang: a thread of its own does not keep this process from its end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | OSError) -> None:
        if not answer.done():
            answer.set_exception(found) if isinstance(found, OSError) else answer.set_result(found)

    def look() -> None:
        found: list[str] | OSError
        try:
            known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(address[0]) for *_, address in known))
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError(f"{host} is not a name")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=look, name="pointsman-resolve", daemon=True).start()
    try:
        return await answer
    except OSError as error:
        raise DeliveryFailed(f"{host} cannot be resolved: {error.strerror or error}") from None


async def _connect(
    addresses: Sequence[str], port: int, host: str, *, secure: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers."""
    context = _make_context() if secure else None
    last: OSError | None = None
    for address in addresses:
        try:
            return await asyncio.open_connection(
                address, port, ssl=context, server_hostname=host if secure else None, limit=LONGEST_LINE
            )
        except OSError as error:
            last = error
    assert last is not None
    reason = getattr(last, "verify_message", None) or last.strerror or str(last)
    raise DeliveryFailed(f"Cannot connect to {host}, port {port}: {reason}")


def _make_context() -> ssl.SSLContext:
    """With the certificates of the system, and checks of the chain and the name."""
    import ssl

    return ssl.create_default_context()


async def _read_status(reader: asyncio.StreamReader) -> int:
    """The status of an answer."""
    for _ in range(MOST_INTERIM):
        status = _read_status_line(await _read_line(reader))
        if status >= INTERIM:
            return status
        while await _read_line(reader):
            pass
    raise DeliveryFailed("The receiver gave no final answer.")


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\n")).strip()
    except asyncio.IncompleteReadError:
        raise DeliveryFailed("The receiver closed the connection without an answer.") from None
    except asyncio.LimitOverrunError:
        raise DeliveryFailed("The receiver did not answer with HTTP.") from None


def _read_status_line(line: bytes) -> int:
    protocol, _, rest = line.partition(b" ")
    code = rest[:3]
    if not protocol.startswith(b"HTTP/1.") or not code.isdigit() or len(code) != 3:
        raise DeliveryFailed("The receiver did not answer with HTTP.")
    return int(code)


def _judge(status: int, place: str) -> None:
    """Only a 2xx means that the receiver has the message. Its own words are not repeated: they may be anything."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return
    phrase = f" {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else ""
    if status < HTTPStatus.BAD_REQUEST:
        message = f"{place} answered {status}{phrase}. Redirects are not followed: name the final URL."
        raise DeliveryFailed(message)
    raise DeliveryFailed(f"{place} answered {status}{phrase}.", is_final=status == HTTPStatus.GONE)
