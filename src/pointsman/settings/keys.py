"""Which settings there are: the declaration of each key, and of the keys of each table."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.settings.readers import (
    NO_LIMIT,
    Reader,
    read_choice,
    read_command,
    read_count,
    read_delivery_seconds,
    read_env,
    read_events,
    read_exit_codes,
    read_rate,
    read_seconds,
    read_server,
    read_size,
    read_store,
    read_target_name,
    read_truth,
    read_usd,
    read_variable,
    read_variables,
    read_webhook,
    read_word,
    read_words,
)

TABLES = {"tools": "curl", "agents": "mycli"}
"""Settings that are tables by name, with an example."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a setting is read, and the name of its flag."""

    read: Reader
    flag: str


SETTINGS: dict[str, Setting] = {
    "store": Setting(read_store, "--store"),
    "server": Setting(read_server, "--server"),
    "slots": Setting(read_count(1, 10_000), "--slots"),
    "capabilities": Setting(read_words, "--capability"),
    "workspace": Setting(read_word, "--workspace"),
    "lease_seconds": Setting(read_seconds, "--lease"),
    "grace_seconds": Setting(read_seconds, "--grace"),
    "log_bytes": Setting(read_size, "--log-bytes"),
    "artifact_files": Setting(read_count(1, 1_000_000), "--artifact-files"),
    "artifact_bytes": Setting(read_size, "--artifact-bytes"),
    "max_queue": Setting(read_count(1, 1_000_000), "--max-queue"),
    "pass_env": Setting(read_variables, "--pass-env"),
    "on_pause": Setting(read_choice("finish", "suspend"), "--on-pause"),
    "max_memory_bytes": Setting(read_size, "--max-memory"),
    "min_free_disk_bytes": Setting(read_size, "--min-free-disk"),
}

TOOL: dict[str, Reader] = {
    "command": read_command,
    "expected_exit_codes": read_exit_codes,
    "retry_on_failure": read_truth,
    "max_concurrent": read_count(1),
    "rate": read_rate,
    "env": read_env,
    "pass_env": read_variables,
}
AGENT: dict[str, Reader] = {
    "command": read_command,
    "prompt": read_choice("stdin", "file"),
    **dict.fromkeys(("model", "resume", "plan", "edit", "full"), read_command),
    **dict.fromkeys(
        ("install", "session", "text", "tool", "cost_usd", "tokens_in", "tokens_out", "result", "error"), read_word
    ),
}
PRICE: dict[str, Reader] = dict.fromkeys(("input", "output", "cached_input"), read_usd)
TENANT: dict[str, Reader] = {"budget_usd": lambda value: value if value == NO_LIMIT else read_usd(value)}
BREAKER: dict[str, Reader] = {
    "failure_threshold": read_count(1),
    "success_threshold": read_count(1),
    "cooldown": read_seconds,
}
TARGET: dict[str, Reader] = {
    "name": read_target_name,
    "on": read_events,
    "command": read_command,
    "webhook": read_webhook,
    "webhook_env": read_variable,
    "secret_env": read_variable,
    "timeout": read_delivery_seconds,
    "tries": read_count(1, 100),
    "allow_private": read_truth,
    "pass_env": read_variables,
}
