"""URLs of databases as people may see them: without passwords, whatever shape they have."""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
_SECRET = re.compile("pass|secret|scram|token", re.IGNORECASE)
"""Part of the name of every parameter of libpq that holds a secret."""
_HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[^@/?:,\[\]]*)(?::\d*)?"
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)"
    r"(?:(?P<user>[^:@/]*)(?P<password>:[^@/]*)?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<path>/[^@?]*)?"
    r"(?:\?(?P<query>.*))?",
    re.DOTALL,
)
"""As libpq divides a URL: user and password end at the first `@`, unless a `/` comes before it."""


def hide_password(url: str) -> str:
    """The URL with `***` for its passwords; of a malformed one, for everything that may be part of a password."""
    if url.startswith("sqlite:"):
        return url
    if found := _URL.fullmatch(url):
        password = found["password"] or ""
        return _join(found, password if password in ("", ":") else f":{HIDDEN}", f"={HIDDEN}")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return HIDDEN if "@" in url or is_secret(url) else url
    before, at, after = rest.rpartition("@")
    place, question, query = after.partition("?") if at else ("", "", "")
    return f"{scheme}://{(before or rest).partition(':')[0]}:{HIDDEN}{at}{place}{question}{_filter(query, f'={HIDDEN}')}"


def drop_password(url: str) -> str | None:
    """The URL without its passwords; None if it is malformed, so that it is unclear where they end."""
    found = _URL.fullmatch(url)
    return _join(found, "", None) if found else None


def is_secret(name: str) -> bool:
    """Whether a parameter holds a secret; its name may be percent-encoded."""
    return _SECRET.search(unquote(name)) is not None


def _join(found: re.Match[str], password: str, hidden: str | None) -> str:
    user = "" if found["user"] is None else f"{found['user']}{password}@"
    query = _filter(found["query"] or "", hidden)
    return f"{found['scheme']}{user}{found['hosts']}{found['path'] or ''}{'?' if query else ''}{query}"


def _filter(query: str, hidden: str | None) -> str:
    """The parameters; `hidden` replaces the value of a secret one, and None the whole."""
    shown: list[str] = []
    for part in query.split("&"):
        name, equals, _ = part.partition("=")
        if equals and not is_secret(name):
            shown.append(part)
        elif equals and hidden:
            shown.append(f"{name}{hidden}")
    return "&".join(shown)
