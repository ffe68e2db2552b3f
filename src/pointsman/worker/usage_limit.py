"""When a usage limit ends: what the agents say about it, read in the words that they use."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

FURTHEST = timedelta(days=35)
"""No limit lasts longer: a later time is not believed."""
UNKNOWN_WAIT = timedelta(minutes=5)
"""How long to wait when nothing says for how long."""
JUST_NOW = timedelta(minutes=10)
"""A time of day that is not longer ago is not that of tomorrow: agents leave out the seconds, and clocks differ."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = re.compile(
    r"(?:resets?|try again)\s+(?:at\s+|on\s+)?"
    r"(?:(?P<month>[A-Za-z]{3})[a-z]*\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?,?\s+(?:(?P<year>\d{4}),?\s+)?(?:at\s+)?)?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?\s*(?P<half>[ap])\.?m\b\.?(?:\s*\((?P<zone>[A-Za-z0-9_+/-]{1,50})\))?",
    re.IGNORECASE,
)
_SECONDS = re.compile(r"limit reached\|(?P<seconds>\d{10})\b")
_WAIT = re.compile(
    r"(?:try again|retry|resets?|reset)\s+(?:in|after)\s+(?P<wait>(?:\d+(?:\.\d+)?\s*[a-z]+[\s,]*)+)", re.IGNORECASE
)
_PART = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[dhms])", re.IGNORECASE)
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def find_reset(text: str, now: datetime) -> datetime | None:
    """The instant in a message; a time without a zone is that of this machine. None if it names none."""
    if found := _SECONDS.search(text):
        return from_seconds(int(found["seconds"]), now)
    if found := _CLOCK.search(text):
        return _believe(_next(found, now), now)
    if found := _WAIT.search(text):
        seconds = sum(float(part["count"]) * _UNITS[part["unit"].lower()] for part in _PART.finditer(found["wait"]))
        return _believe(now + timedelta(seconds=min(seconds, 10 * FURTHEST.total_seconds())), now) if seconds else None
    return None


def from_seconds(seconds: object, now: datetime) -> datetime | None:
    """The instant that many seconds after 1970."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 10**11:
        return None
    return _believe(datetime.fromtimestamp(seconds, UTC), now)


def _believe(instant: datetime | None, now: datetime) -> datetime | None:
    return instant if instant is not None and instant <= now + FURTHEST else None


def _next(found: re.Match[str], now: datetime) -> datetime | None:
    """The next time that the clock shows that."""
    hour, minute = int(found["hour"]), int(found["minute"] or 0)
    if not 1 <= hour <= 12 or minute > 59:
        return None
    local = now.astimezone(_find_zone(found["zone"]))
    hour = hour % 12 + (12 if found["half"].lower() == "p" else 0)
    try:
        at = local.replace(hour=hour, minute=minute, second=0, microsecond=0)
        if found["month"]:
            month = MONTHS.index(found["month"].lower()) + 1
            at = at.replace(year=int(found["year"] or local.year), month=month, day=int(found["day"]))
            if not found["year"] and at < local - timedelta(days=1):
                at = at.replace(year=at.year + 1)
        elif at <= local - JUST_NOW:
            at = (at.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=at.tzinfo)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):  # a year may be 0001 or 9999
        return None


def _find_zone(name: str | None) -> tzinfo | None:
    """None is the zone of this machine."""
    try:
        return ZoneInfo(name) if name else None
    except (OSError, ValueError):  # an unknown zone is an OSError, a malformed name a ValueError
        return None
