"""The text of an API key: made once, shown once, and recognised without a database.

    pm_3f9ac01b2d4e_7Kq…Zr0a1B2c3
    │  │            │      └ checksum, 6 characters: a mistyped key is refused without a query
    │  │            └ secret, 43 characters: 256 random bits
    │  └ id, 12 characters: `key_3f9ac01b2d4e` in the database
    └ what scanners look for: `pm_[0-9a-f]{12}_[0-9A-Za-z]{49}`

A double click selects all of it: it has only letters, digits and underscores.

A ticket stands for a key for some seconds: `pmt_`, id, end (seconds since 1970), nonce, and the HMAC-SHA256 of these with the
stored hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import NamedTuple
from zlib import crc32

from pointsman.errors import AuthenticationFailed
from pointsman.world import Chance

SECRET_BITS = 256
ID_PREFIX = "key"
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_LENGTH = 43
_CHECKSUM_LENGTH = 6
_TEXT = re.compile(
    rf"(?P<checked>pm_(?P<id>[0-9a-f]{{12}})_(?P<secret>[0-9A-Za-z]{{{_SECRET_LENGTH}}}))(?P<checksum>[0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)
_NONCE_BITS = 128
_TICKET = re.compile(r"pmt_(?P<id>[0-9a-f]{12})_(?P<ends>[0-9]{1,11})_(?P<nonce>[0-9a-f]{32})_[0-9a-f]{64}")


class KeyText(NamedTuple):
    """What the text of a key says."""

    key_id: str
    secret: str

    @property
    def secret_hash(self) -> str:
        """What the database keeps. The secret is random, so a fast hash without a salt is enough."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def write(self) -> str:
        checked = f"pm_{self.key_id.removeprefix(f'{ID_PREFIX}_')}_{self.secret}"
        return checked + _checksum(checked)

    def __repr__(self) -> str:
        """Without the secret, which has no place in a log."""
        return f"KeyText({self.key_id!r})"


def make_key(key_id: str, chance: Chance) -> KeyText:
    """A new secret for a key; `chance` of the real world is that of the operating system."""
    return KeyText(key_id, _write_number(chance.getrandbits(SECRET_BITS), _SECRET_LENGTH))


def parse_key(text: object) -> KeyText:
    """The key that a text stands for; anything that is not the text of a key raises `AuthenticationFailed`."""
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None or _checksum(found["checked"]) != found["checksum"]:
        raise AuthenticationFailed
    return KeyText(f"{ID_PREFIX}_{found['id']}", found["secret"])


class TicketText(NamedTuple):
    """What the text of a ticket says."""

    key_id: str
    ends: int
    nonce: int

    @property
    def ends_at(self) -> datetime:
        return datetime.fromtimestamp(self.ends, UTC)

    def write(self, secret_hash: str) -> str:
        signed = f"pmt_{self.key_id.removeprefix(f'{ID_PREFIX}_')}_{self.ends}_{self.nonce:032x}"
        return f"{signed}_{hmac.digest(secret_hash.encode(), signed.encode(), 'sha256').hex()}"


def make_ticket(key_id: str, ends_at: datetime, chance: Chance) -> TicketText:
    return TicketText(key_id, int(ends_at.timestamp()), chance.getrandbits(_NONCE_BITS))


def parse_ticket(text: str) -> TicketText:
    """What a text says that may be a ticket; whether it is one, only its signature tells."""
    found = _TICKET.fullmatch(text)
    if found is None:
        raise AuthenticationFailed
    return TicketText(f"{ID_PREFIX}_{found['id']}", int(found["ends"]), int(found["nonce"], 16))


def _checksum(checked: str) -> str:
    return _write_number(crc32(checked.encode()), _CHECKSUM_LENGTH)


def _write_number(number: int, length: int) -> str:
    written = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        written = _DIGITS[digit] + written
    assert number == 0
    return written
