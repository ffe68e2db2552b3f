"""Settings: the order of their sources, where each came from, and everything that can be wrong with them."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from textwrap import dedent

import pytest
from tests.rows import each_row

from pointsman.errors import Finding, SettingsInvalid
from pointsman.prices import ModelUsage, Price, estimate
from pointsman.settings import (
    GIVEN_TO_TASKS,
    SETTINGS,
    AgentProfile,
    NotifyTarget,
    Settings,
    ToolProfile,
    find_keys,
    load_settings,
)
from pointsman.store.urls import hide_password

TOOLS = """\
[tools.curl]
command = ["curl", "-fsS"]
expected_exit_codes = [0, 22]
retry_on_failure = false
max_concurrent = 2
rate = "10/1m"
env = {LANG = "C"}

[tools.curl.breaker]
failure_threshold = 3
cooldown = "90s"
"""


def load(folder: Path, toml: str = "", pyproject: str = "", flags: object = None, **environ: str) -> Settings:
    if toml:
        (folder / "pointsman.toml").write_text(dedent(toml))
    if pyproject:
        (folder / "pyproject.toml").write_text(dedent(pyproject))
    assert flags is None or isinstance(flags, dict)
    return load_settings(folder, flags or {}, environ)


def findings(folder: Path, toml: str = "", pyproject: str = "", flags: object = None, **environ: str) -> tuple[Finding, ...]:
    with pytest.raises(SettingsInvalid) as caught:
        load(folder, toml, pyproject, flags, **environ)
    return caught.value.findings


def test_without_any_setting_there_are_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.store == f"sqlite:///{tmp_path}/.pointsman/state.db"
    assert settings.slots == len(os.sched_getaffinity(0))
    assert settings.on_pause == "finish"
    assert set(settings.origins.values()) == {"default"}


def test_the_first_source_wins_and_each_setting_says_where_it_came_from(tmp_path: Path) -> None:
    toml = """\
    # mine
    slots = 3
    grace_seconds = "1m"
    lease_seconds = 45
    """
    pyproject = """\
    [project]
    name = "x"

    [tool.pointsman]
    log_bytes = "1 MB"
    slots = 9
    """
    settings = load(tmp_path, toml, pyproject, {"slots": 7, "store": None, "capabilities": ()}, POINTSMAN_GRACE_SECONDS="5s")
    assert (settings.slots, settings.origins["slots"]) == (7, "flag --slots")
    assert (settings.grace_seconds, settings.origins["grace_seconds"]) == (5.0, "POINTSMAN_GRACE_SECONDS")
    assert (settings.lease_seconds, settings.origins["lease_seconds"]) == (45.0, "pointsman.toml:4")
    assert (settings.log_bytes, settings.origins["log_bytes"]) == (1_000_000, "pyproject.toml:5")
    assert settings.origins["store"] == "default"


def test_lists_in_the_environment_have_commas_and_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    settings = load(tmp_path, POINTSMAN_CAPABILITIES="gpu, linux,gpu", POINTSMAN_SLOTS="", POINTSMAN_PASS_ENV="A,B")
    assert settings.capabilities == ("gpu", "linux")
    assert settings.pass_env == ("A", "B")
    assert settings.origins["slots"] == "default"


def test_a_database_beside_the_file_that_names_it_stays_there(tmp_path: Path) -> None:
    inner = tmp_path / "deep" / "down"
    inner.mkdir(parents=True)
    (tmp_path / "pointsman.toml").write_text('store = "sqlite:///mine.db"\n')
    assert load_settings(inner, {}, {}).store == f"sqlite:///{tmp_path}/mine.db"
    assert load_settings(inner, {"store": "sqlite:///x.db"}, {}).store == f"sqlite:///{Path.cwd()}/x.db"
    assert load_settings(inner, {"store": "postgresql://a@b/c"}, {}).store == "postgresql://a@b/c"
    assert load_settings(inner, {"store": "sqlite:///:memory:"}, {}).store == "sqlite:///:memory:"


@pytest.mark.parametrize("mark", ["pointsman.toml", ".pointsman", "pyproject.toml"])
def test_the_project_is_the_nearest_folder_with_a_mark_of_pointsman(tmp_path: Path, mark: str) -> None:
    inner = tmp_path / "deep" / "down"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    assert load_settings(inner, {}, {}).directory == inner
    if mark == ".pointsman":
        (tmp_path / mark).mkdir()
    else:
        (tmp_path / mark).write_text("[tool.pointsman]\nslots = 2\n" if mark == "pyproject.toml" else "slots = 2\n")
    assert load_settings(inner, {}, {}).directory == tmp_path


def test_a_tool_has_its_command_its_breaker_and_its_limits(tmp_path: Path) -> None:
    settings = load(tmp_path, TOOLS)
    assert settings.tools["curl"] == ToolProfile(
        name="curl",
        command=("curl", "-fsS"),
        expected_exit_codes=(0, 22),
        retry_on_failure=False,
        failure_threshold=3,
        cooldown_seconds=90.0,
        max_concurrent=2,
        rate_count=10,
        rate_seconds=60.0,
        env={"LANG": "C"},
    )
    assert settings.origins["tools.curl"] == "pointsman.toml:1"
    assert settings.origins["tools.curl.rate_count"] == "pointsman.toml:6"
    assert settings.origins["tools.curl.cooldown_seconds"] == "pointsman.toml:11"


def test_a_tool_belongs_to_the_first_file_that_names_it(tmp_path: Path) -> None:
    pyproject = "[tool.pointsman.tools.curl]\nmax_concurrent = 9\n[tool.pointsman.tools.git]\ncommand = ['git']\n"
    settings = load(tmp_path, TOOLS, pyproject)
    assert settings.tools["curl"].max_concurrent == 2
    assert settings.tools["git"].command == ("git",)
    assert settings.origins["tools.git.command"] == "pyproject.toml:4"


def test_models_have_prices_and_tenants_have_budgets(tmp_path: Path) -> None:
    toml = """\
        [prices."gpt-5.1"]
        input = 1.25
        output = 10
        cached_input = 0.125
        [prices.small]
        input = 0
        output = 0.5
        [tenants.default]
        budget_usd = 20
        [tenants.acme]
        budget_usd = "none"
        """
    settings = load(tmp_path, toml)
    assert settings.prices["gpt-5.1"] == Price(Decimal("1.25"), Decimal(10), Decimal("0.125"))
    assert settings.prices["small"] == Price(Decimal(0), Decimal("0.5"))
    assert settings.tenant_budgets == {"default": Decimal(20), "acme": None}
    assert settings.origins["prices.gpt-5.1"] == "pointsman.toml:1"


def test_prices_and_budgets_that_are_wrong_are_refused_with_line_and_advice(tmp_path: Path) -> None:
    toml = """\
        prices.a = 3
        [prices.b]
        input = -1
        outptu = 1
        [prices.c]
        input = "2"
        output = inf
        [tenants.d]
        budget_usd = true
        [tenants.e]
        """
    assert [(found.place.line, found.message) for found in findings(tmp_path, toml)] == [
        (1, "prices.a: 3 is not a table."),
        (3, "prices.b.input: -1 is not an amount from 0 to 10,000,000 USD."),
        (4, "prices.b.outptu: There is no such key."),
        (2, "prices.b: 'output' is missing."),
        (6, "prices.c.input: '2' is not an amount from 0 to 10,000,000 USD."),
        (7, "prices.c.output: inf is not an amount from 0 to 10,000,000 USD."),
        (9, "tenants.d.budget_usd: True is not an amount from 0 to 10,000,000 USD."),
        (10, "tenants.e: 'budget_usd' is missing."),
    ]


def test_an_agent_of_the_settings_that_is_wrong_is_refused_with_line_and_advice(tmp_path: Path) -> None:
    toml = """\
        agents.a = 3
        [agents.claude]
        command = ["claude"]
        [agents.b]
        comand = ["b"]
        [agents.c]
        command = ["c"]
        prompt = "file"
        session = "id"
        [agents.d]
        command = ["d"]
        session = "id"
        resume = ["--continue"]
        [agents.e]
        command = ["e"]
        resume = ["--continue={session}"]
        """
    assert [(found.place.line, found.message) for found in findings(tmp_path, toml)] == [
        (1, "agents.a: 3 is not a table."),
        (2, "agents.claude: Pointsman knows this agent by itself."),
        (5, "agents.b.comand: There is no such key."),
        (4, "agents.b: It has no `command`."),
        (7, "agents.c.command: It does not say where the prompt is."),
        (9, "agents.c.session: It has no `resume`."),
        (13, "agents.d.resume: It does not say which session to continue."),
        (16, "agents.e.resume: It has no `session`."),
    ]


@pytest.mark.parametrize(
    ("model", "cached", "usd"),
    [
        ("m", 0, "4.5"),
        ("m", 1_000_000, "2.7"),
        ("m", 9_000_000, "2.7"),
        ("m-2026-01-01", 0, "4.5"),
        ("m-mini-2026", 0, "1.5"),
        ("mm", 0, None),
    ],
)
def test_a_cost_is_estimated_from_the_tokens_and_the_price_of_the_model(model: str, cached: int, usd: str | None) -> None:
    prices = {"m": Price(Decimal(2), Decimal(5), Decimal("0.2")), "m-mini": Price(Decimal(1), Decimal(1))}
    usage = ModelUsage(model, tokens_in=1_000_000, tokens_out=500_000, cached_tokens_in=cached)
    assert estimate(usage, prices) == (None if usd is None else Decimal(usd))


NOTIFY = """\
[[notify]]
name = "ops"
on = ["person_needed", "run_failed"]
webhook_env = "OPS_URL"
secret_env = "OPS_SECRET"
timeout = "30s"
tries = 5
allow_private = true

[[notify]]
name = "desk"
on = "run_ended"
command = ["notify-send", "done"]
pass_env = ["DISPLAY"]
"""


def test_targets_of_notifications_have_events_and_a_command_or_a_webhook(tmp_path: Path) -> None:
    settings = load(tmp_path, NOTIFY)
    ops, desk = settings.notify.values()
    assert (ops.on, ops.method, ops.timeout_seconds, ops.tries) == (("person_needed", "run_failed"), "webhook", 30.0, 5)
    assert (ops.webhook_env, ops.secret_env, ops.allow_private) == ("OPS_URL", "OPS_SECRET", True)
    assert (desk.on, desk.command, desk.pass_env) == (("run_ended",), ("notify-send", "done"), ("DISPLAY",))
    assert (desk.method, desk.allow_private) == ("command", False)
    assert settings.origins["notify.desk"] == "pointsman.toml:10"


@each_row(
    ("toml", "place", "said"),
    [
        ("notify = 3", 1, "notify: 3 is not a list of tables."),
        ("[notify]\nname = 'a'", 1, "is not a list of tables."),
        ("[[notify]]\non = 'run_ended'\ncommand = ['a']", 1, "notify: It has no `name`."),
        ("[[notify]]\nname = 'a'\ncommand = ['a']", 1, "notify: It has no `on`."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'", 1, "notify: It says neither what to run nor where to post."),
        ("[[notify]]\nname = 'a'\non = 'run_end'\ncommand = ['a']", 3, "notify.on: There is no event 'run_end'."),
        ("[[notify]]\nname = 'a'\non = []\ncommand = ['a']", 3, "notify.on: It is empty."),
        ("[[notify]]\nname = 'a b'\non = 'run_ended'\ncommand = ['a']", 2, "notify.name: 'a b' is not a name."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\ncommand = []", 4, "notify.command: "),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\ncommand = ['a']\nwebhook = 'http://b'", 1, "`command` and `webhook`."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\ncommand = ['a']\nsecret_env = 'B'", 1, "belongs to `webhook`."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\nwebhook = 'http://b'\npass_env = ['B']", 1, "belongs to `command`."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\nwebhook = 'ftp://hidden'", 4, "It is not an http or https URL."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\nwebhook = 'http://u:hidden@b'", 4, "It has a user or a password."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\nwebhook = 'http://b/hidden x'", 4, "characters that must be encoded."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\nwebhook = 'http://b:hidden'", 4, "It is not a URL."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\nwebhook_env = 'https://hidden'", 4, "not a valid name for a variable."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\ncommand = ['a']\ntimeout = '1h'", 5, "is more than 60 seconds."),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\ncommand = ['a']\ntries = 0", 5, "notify.tries: "),
        ("[[notify]]\nname = 'a'\non = 'run_ended'\ncommand = ['a']\nurl = 'b'", 5, "notify.url: "),
        (NOTIFY.replace("desk", "ops"), 11, "notify: Another one is called 'ops'."),
    ],
)
def test_a_target_that_is_wrong_is_refused_at_its_line_without_its_secrets(
    tmp_path: Path, toml: str, place: int, said: str
) -> None:
    found = findings(tmp_path, toml)
    assert (place, True) in [(each.place.line, said in each.message) for each in found]
    assert "hidden" not in " ".join(each.message for each in found)


def test_everything_that_is_wrong_is_said_at_once_with_line_and_advice(tmp_path: Path) -> None:
    toml = """\
    slot = 4
    on_pause = "suspended"
    store = "mysql://x"

    [tools.curl]
    command = "curl -fsS 'a b'"
    expected_exit_codes = [0, 300]
    rate = "often"
    max_concurent = 2
    [tools.curl.breaker]
    cooldown = true
    threshold = 4
    """
    found = findings(tmp_path, toml, "", {"slots": 0}, POINTSMAN_LEASE_SECOND="4", POINTSMAN_LOG_BYTES="lots")
    assert {str(finding.place): finding.message.partition(":")[0] for finding in found} == {
        "POINTSMAN_LEASE_SECOND": "There is no setting 'lease_second'.",
        "pointsman.toml:1:1": "There is no setting 'slot'.",
        "pointsman.toml:2:1": "on_pause",
        "pointsman.toml:3:1": "store",
        "--slots": "slots",
        "POINTSMAN_LOG_BYTES": "log_bytes",
        "pointsman.toml:6:1": "tools.curl.command",
        "pointsman.toml:7:1": "tools.curl.expected_exit_codes",
        "pointsman.toml:8:1": "tools.curl.rate",
        "pointsman.toml:9:1": "tools.curl.max_concurent",
        "pointsman.toml:11:1": "tools.curl.breaker.cooldown",
        "pointsman.toml:12:1": "tools.curl.breaker.threshold",
    }
    advice = {str(finding.place): finding.advice for finding in found}
    assert advice["pointsman.toml:1:1"] == "Did you mean slots?"
    assert advice["pointsman.toml:2:1"] == "Did you mean suspend?"
    assert advice["pointsman.toml:6:1"] == 'Write ["curl", "-fsS", "a b"].'
    assert advice["pointsman.toml:9:1"] == "Did you mean max_concurrent?"
    assert advice["POINTSMAN_LEASE_SECOND"].startswith("Did you mean POINTSMAN_LEASE_SECONDS")


def test_a_password_is_not_shown_in_a_refusal(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, POINTSMAN_STORE="mysql://me:secret@there/db")
    assert "mysql://me:***@there/db" in finding.message


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:se:cret@h", "postgresql://u:***@h"),
        ("postgresql://u:s/x@h", "postgresql://u:***@h"),
        ("postgresql://u:a@b@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("postgres://:secret@h/db", "postgres://:***@h/db"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgresql://u@h:5432/db?password=a@b&x=y", "postgresql://u@h:5432/db?password=***&x=y"),
        ("postgresql://u:a@h/db?sslpassword=b", "postgresql://u:***@h/db?sslpassword=***"),
        ("postgresql://h:5432/db?passw%6Frd=secret", "postgresql://h:5432/db?passw%6Frd=***"),
        ("postgresql://u:se?cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql+psycopg://u:secret@h/db", "postgresql+psycopg://u:***@h/db"),
        ("postgresql:/u:secret@h/db", "***"),
        ("postgresql://u:secret", "postgresql://u:***"),
        ("sqlite:////srv/a:b@c.db", "sqlite:////srv/a:b@c.db"),
    ],
)
def test_nothing_of_a_password_is_shown_whatever_is_in_it(url: str, shown: str) -> None:
    assert hide_password(url) == shown


def test_what_a_task_is_told_in_its_environment_is_no_setting(tmp_path: Path) -> None:
    names = (*GIVEN_TO_TASKS, "TEST_DSN", "TEST_OWNER", "SIMULATION_RUNS")
    assert {"TASK_NAME", "WORKER_ID"} < set(names)
    load(tmp_path, **{f"POINTSMAN_{name}": "x" for name in names})


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        ("slots = \n", "pointsman.toml:1:9"),
        ("slots = 2\n[tools", "pointsman.toml:2:7"),
        ("tools = 3\n", "pointsman.toml:1:1"),
        ("[tools]\ncurl = 'x'\n", "pointsman.toml:2:1"),
        ("[tools.curl]\nbreaker = 1\n", "pointsman.toml:2:1"),
        ("tools = {curl = {rate = 4}}\n", "pointsman.toml:1:1"),
        ("[[tools]]\nx = 1\n", "pointsman.toml:1:3"),
    ],
)
def test_a_file_that_has_another_shape_is_refused_where_it_is_wrong(tmp_path: Path, toml: str, place: str) -> None:
    assert [str(finding.place) for finding in findings(tmp_path, toml)] == [place]


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pointsman.toml").write_bytes(b"\xff\xfe\x00")
    assert findings(tmp_path)[0].advice == "Save it as UTF-8."


def test_keys_are_found_behind_texts_and_lists_of_many_lines() -> None:
    text = dedent('''\
        a = """
        b = 1
        [c]
        """  # d = 2
        "e.f" = [
          "x = ]",
        ]
        [ g . 'h' ]
          i.j = {k = 1}
        [[l]]
        m = '\\'
        n = "\\"]"
        ''')
    assert find_keys(text) == {
        ("a",): (1, 1),
        ("e.f",): (5, 1),
        ("g",): (8, 3),
        ("g", "h"): (8, 3),
        ("g", "h", "i"): (9, 3),
        ("g", "h", "i", "j"): (9, 3),
        ("l",): (10, 3),
        ("l", "0"): (10, 3),
        ("l", "0", "m"): (11, 1),
        ("l", "0", "n"): (12, 1),
    }


def test_the_examples_of_the_documentation_hold_and_every_setting_is_explained(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "settings.md").read_text("utf-8")
    examples = [load(tmp_path, each) for each in re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    assert examples[0].tools["curl"].rate_seconds == 60.0
    for name, setting in SETTINGS.items():
        assert f"| `{name}` | `{setting.flag}` |" in page, name
    for kind in (AgentProfile, NotifyTarget):
        for field in fields(kind):
            assert re.search(rf"^\|[^|]*`{field.name.removesuffix('_seconds')}`", page, re.MULTILINE), field.name
