"""The settings of a project.

sources (flags, environment, files) ─▶ keys: readers ─▶ tables ─ load ─▶ Settings with profiles, and the origin of each
"""

from pointsman.settings.keys import SETTINGS
from pointsman.settings.load import load_settings
from pointsman.settings.profiles import (
    AGENTS,
    FOLDER,
    LONGEST_DELIVERY_SECONDS,
    MOST_TRIES,
    AgentProfile,
    NotifyTarget,
    Settings,
    ToolProfile,
)
from pointsman.settings.readers import explain_url, show_host
from pointsman.settings.sources import GIVEN_TO_TASKS, PREFIX, find_keys
from pointsman.settings.tables import explain_target

__all__ = [
    "AGENTS",
    "FOLDER",
    "GIVEN_TO_TASKS",
    "LONGEST_DELIVERY_SECONDS",
    "MOST_TRIES",
    "PREFIX",
    "SETTINGS",
    "AgentProfile",
    "NotifyTarget",
    "Settings",
    "ToolProfile",
    "explain_target",
    "explain_url",
    "find_keys",
    "load_settings",
    "show_host",
]
