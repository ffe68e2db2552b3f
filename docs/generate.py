"""Writes the parts of the documentation that follow from the code.

python docs/generate.py           write them
python docs/generate.py --check   only say which are out of date, and end with 1 if any is
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pointsman.client.client import Client
from pointsman.engine import calls
from pointsman.events.validate import RULES
from pointsman.flows import model
from pointsman.flows.explain import INTERNAL
from pointsman.flows.kinds import list_models
from pointsman.flows.rules import RULES as FLOW_RULES
from pointsman.flows.schema import describe_fields
from pointsman.kernel.draw import draw
from pointsman.lifecycles import SHIPPED, load_lifecycle, load_machine, machine_names, read_shipped
from pointsman.lifecycles.packed import PACKED, write_pack
from pointsman.lifecycles.vocabulary import VOCABULARY
from pointsman.server import client_code
from pointsman.server.families import FAMILIES
from pointsman.server.openapi import name_schema
from pointsman.server.problems import PROBLEMS, ProblemType
from pointsman.server.route import Route
from pointsman.server.routes import ALL, NOT_SERVED
from pointsman.store.scripts import schema_file
from pointsman.store.scripts import write_schema as write_sql_schema
from pointsman.store.sqlite import schema as sqlite

DOCS = Path(__file__).parent
CALL_TABLE = '''\
"""Written by `make docs`: what identifies the calls of the engine over HTTP."""

DIGEST = "{digest}"
"""Of `calls.describe_calls()`: two sides with the same digest have the same calls."""
'''
INTRODUCTION = """\
# The shipped machines

Written from the lifecycle files by `make docs`. Names are `lifecycle.machine`; a lifecycle borrows the kinds that it does not
declare from `standard`.
"""


PROBLEMS_INTRODUCTION = """\
# Problems

Every error of the [HTTP API](http.md) is a problem document (RFC 9457) with the media type `application/problem+json`. Its
`type` is stable, and a path of the server that describes it. `detail` is for people; its wording may change. Written from
the code by `make docs`.

    {"type": "/problems/key-reused", "title": "…", "status": 422, "detail": "…"}
"""
CLIENT_INTRODUCTION = """\
# The Python client

`pointsman.client.Client`, and `AsyncClient` with the same methods as coroutines: [how to use
them](../how-to/use-the-python-client.md). Parameters in the path of a route are positional, all others have names.
Every method for a change takes `request_id`, an idempotency key of your own. Answers are the frozen structs of
`pointsman.client.answers`, errors the exceptions of `pointsman.errors`. Written from the code by `make docs`.
"""
LIVE_EVENTS = """\
## Live events

A WebSocket at `/api/v1/events` and Server-Sent Events at `/api/v1/events/stream` send the events of the tenant as they
happen. Both have the scope `read`, the same query and the same frames:

```json
{"cursor": "42", "events": [{"type": "task_completed", "position": "42", "task_id": "task_1", "state": "READY"}]}
```

| Type | When |
|---|---|
| `transition` | Each transition, as `GET /api/v1/events` lists it, with its `lifecycle`. |
| `task_completed` | A task has ended, or its execution has and a person accepts, rejects or answers. |
| `task_question` | A task asks; `question` is null if it has been answered already. |

- **Query.** `after`, `type` (several with commas), `kind`, `run_id`, `lifecycle`, `state`, `ticket`; `/openapi.json`
  describes them at `/api/v1/events/stream`. What is wrong with them is a problem document instead of the handshake.
- **Continue.** Store the `cursor` of the last frame, and give it as `after` to any server of the database: nothing is
  missing and nothing is repeated. Without `after`, the stream begins now; `after=0` is the beginning. A browser sends the
  cursor of Server-Sent Events as `Last-Event-ID` itself.
- **Heartbeats.** A frame without events says that the client has everything up to its cursor: once after catching up,
  and every 15 seconds. WebSockets are also pinged every 20 seconds.
- **Browsers** cannot send a key here. `POST /api/v1/tickets` with the key gives a ticket for `?ticket=…`, which works once
  within 30 seconds; after a break, get another one. Pages of other origins are refused.
- **Ends.** Close codes: 1001 the server stops, 1003 the client has sent something, 1008 the key has ended. A client
  that takes nothing for 10 seconds is cut off. In each case, continue with the cursor.
- A process takes 2,000 streams of a tenant, each of which needs a file descriptor (`ulimit -n`).
"""
HTTP_INTRODUCTION = """\
# The HTTP API

`pointsman serve` and `pointsman up` serve it: [how to run the server](../how-to/run-the-server.md). `/openapi.json`
describes every route completely (OpenAPI 3.1): parameters, bodies, answers, errors, and an example of each. This page is
the list, written from the code by `make docs`.

- Bodies and answers are JSON. A body has at most 16 MiB and 200 levels. Amounts of money are texts with a decimal number,
  instants are ISO 8601 in UTC.
- Errors are [problem documents](problems.md).
- Each answer about a run, a task, a worker or a breaker has `allowed`: the transitions that people can cause now.
- **Idempotency.** Each call that changes something takes the header `Idempotency-Key`, or `request_id` in its body. The
  same key on the same route with the same body has one effect and one answer; a repeated answer has the header
  `Idempotent-Replayed: true`. Another body is refused (422). A key counts for one API key and one route, for an hour; one
  that has submitted a run counts for good. Two equal requests at the same time get the same answer. A refused request has no
  effect, and may be sent again with its key. Claims, heartbeats, log parts and artifact parts need no key: the epoch of the
  attempt, or the offset, makes them safe to repeat.
- **Lists** have `limit` (100 unless given, at most 1,000), and `next` to give as `after` for the next page; null on the last
  one. What is added or leaves meanwhile does not shift the pages: nothing is missing and nothing is repeated. `next` is an
  opaque text, valid for its own list only; another text is refused (422). Filters of a list are in the OpenAPI document.
- A slash in a name is sent as `%2F`: the tool `vendor/a` is `/api/v1/breakers/vendor%2Fa`.
- `HEAD` is `GET` without the body, except for streams.
- **Keys.** `Authorization: Bearer KEY`, see [command line](command-line.md). Each route needs the scope in the table; `-`
  is open to anybody. Without any API key, the server listens on a loopback address only, and the header `Pointsman-Actor`
  says in whose name a request acts.
"""
TAGS = {
    "document 000": "Workers and jobs (document 000)",
    "document 003": "Runs and approvals (document 003)",
    "document 004": "Tasks of agents (document 004)",
    "v1": "Everything (`/api/v1`)",
    "server": "The server itself",
}


def documents() -> Iterator[tuple[Path, str]]:
    """Every generated file with what it should hold."""
    for name in machine_names():
        yield DOCS / "pictures" / f"{name}.svg", draw(load_machine(name), "svg")
    yield DOCS / "reference" / "machines.md", machines_page()
    yield DOCS / "reference" / "problems.md", problems_page()
    yield DOCS / "reference" / "http.md", http_page()
    yield DOCS / "reference" / "python-client.md", client_page()
    client = DOCS.parent / "src" / "pointsman" / "client"
    digest = sha256(calls.describe_calls().encode()).hexdigest()[:16]
    yield client.parent / "engine" / "call_table.py", CALL_TABLE.format(digest=digest)
    yield client / "requests.py", tidy(client_code.write_requests())
    yield client / "answers.py", tidy(client_code.write_answers())
    yield client / "calls.py", tidy(client_code.write_calls(is_async=False))
    yield client / "async_calls.py", tidy(client_code.write_calls(is_async=True))
    yield PACKED, write_pack(map(read_shipped, SHIPPED), VOCABULARY)
    yield schema_file("pointsman.store.sqlite"), sqlite.write_schema()
    yield schema_file("pointsman.store.postgres"), write_sql_schema("pointsman.store.postgres")
    sections = {
        "signals": signals_table(),
        "words": words_section(),
        "rules": rules_table(RULES),
        "flow-rules": rules_table(FLOW_RULES),
        "flow-keys": keys_table(model.Flow),
        "input-keys": keys_table(model.Input),
        "task-keys": keys_table(model.FlowTask, *list_models().values(), without=model.Defaults),
        "default-keys": keys_table(model.Defaults),
        "backoff-keys": keys_table(model.Backoff),
        "check-keys": keys_table(model.Check),
        "approval-keys": keys_table(model.Approval),
        "expects-keys": keys_table(model.Expects),
        "worktree-keys": keys_table(model.Worktree),
        "notify-keys": keys_table(model.Notify),
        "database-metrics": metrics_table(of_process=False),
        "process-metrics": metrics_table(of_process=True),
    }
    for page in ("lifecycle-files.md", "events.md", "flow-files.md", "metrics.md"):
        path = DOCS / "reference" / page
        yield path, fill(path.read_text("utf-8"), sections)


def tidy(source: str) -> str:
    """Source without unused imports, laid out as all other source is."""
    ruff, name = Path(sys.executable).with_name("ruff"), "src/pointsman/client/written.py"
    for command in (["check", "--fix-only", "--select", "F401,I"], ["format"]):
        arguments = [str(ruff), *command, "--quiet", "--stdin-filename", name, "-"]
        done = subprocess.run(arguments, input=source, capture_output=True, text=True, check=True, cwd=DOCS.parent)
        source = done.stdout
    return source


def problems_page() -> str:
    rows = [f"| `{each.uri}` | {each.status} | {each.title} | {each.meaning} |" for each in PROBLEMS]
    members = [f"- `{each.name}`: {name_members(each)}" for each in PROBLEMS if each.members or each.extras]
    table = "\n".join(("| Type | Status | Title | Meaning |", "|---|---|---|---|", *rows))
    more = "\n".join(members)
    return f"{PROBLEMS_INTRODUCTION}\n{table}\n\nSome have more members:\n\n{more}\n"


def name_members(problem: ProblemType) -> str:
    return ", ".join([*(f"`{name}`" for name in problem.members), *(f"`{name}` (not always)" for name in problem.extras)])


def name_scope(route: Route) -> str:
    return "-" if route.is_open else route.scope


def http_page() -> str:
    parts = [HTTP_INTRODUCTION]
    for tag, title in TAGS.items():
        routes = [route for route in ALL if route.tag == tag]
        rows = [
            f"| `{route.method} {route.path}` | {name_scope(route)} | {route.summary} | `{name_schema(route)}` |"
            for route in routes
        ]
        parts.append("\n".join((f"## {title}\n", "| Route | Scope | | Answer |", "|---|---|---|---|", *rows, "")))
    parts.append(LIVE_EVENTS)
    reasons = "\n".join(f"- `{name}`: {reason}" for name, reason in NOT_SERVED.items())
    parts.append(f"## Not served\n\nThese operations of the [engine](engine.md) have no route:\n\n{reasons}\n")
    return "\n".join(parts)


def client_page() -> str:
    """Every public method of the client, with the route behind it."""
    routes = {method.name: f"{method.route.method} {method.route.path}" for method in client_code.list_methods()}
    iterators = {method.iterator: routes[method.name] for method in client_code.list_methods() if method.item}
    rows = []
    for name, method in inspect.getmembers(Client, inspect.isfunction):
        if not name.startswith("_"):
            given = ", ".join(each for each in inspect.signature(method).parameters if each != "self")
            summary = (inspect.getdoc(method) or "").partition("\n\n")[0].replace("\n", " ")
            summary = re.sub(r" Needs the scope `[a-z]+`\.", "", summary)
            route = {**routes, **iterators}.get(name)
            rows.append(f"| `{name}({given})` | {summary} | {f'`{route}`' if route else ''} |")
    return "\n".join((CLIENT_INTRODUCTION, "| Method | | Route |", "|---|---|---|", *rows, ""))


def machines_page() -> str:
    parts = [INTRODUCTION]
    for name in SHIPPED:
        lifecycle = load_lifecycle(name)
        borrowed = ", ".join(f"`{machine.name}`" for machine in lifecycle.borrowed)
        parts.append(f"## {lifecycle.name}\n\n{lifecycle.title}." + (f" Borrows {borrowed}." if borrowed else ""))
        for machine in lifecycle.machines:
            table = re.sub(r"^#+ .*\n+", "", draw(machine, "markdown"), count=1)
            parts.append(f"### {machine.name}\n\n![{machine.name}](../pictures/{machine.name}.svg)\n\n{table.strip()}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def signals_table() -> str:
    rows = [
        f"| {kind} | {words(signals.required)} | {words(signals.optional)} |" for kind, signals in VOCABULARY.signals.items()
    ]
    return "\n".join(["| kind | required | optional |", "|---|---|---|", *rows])


def words_section() -> str:
    effects = [f"| `{name}` | {meaning} |" for name, meaning in VOCABULARY.effects.items()]
    needs = ", ".join(f"`{name}` ({meaning})" for name, meaning in VOCABULARY.needs.items())
    guards = ", ".join(f"`{name}`" for name in VOCABULARY.guards)
    return "\n".join([f"Guards: {guards}.", "", "| effect | meaning |", "|---|---|", *effects, "", f"Needs: {needs}."])


def rules_table(rules: Mapping[str, str]) -> str:
    return "\n".join(
        ["| rule | what must hold |", "|---|---|", *(f"| `{rule}` | {meaning} |" for rule, meaning in rules.items())]
    )


def keys_table(*kinds: type[BaseModel], without: type[BaseModel] = BaseModel) -> str:
    """The fields of the models with their descriptions; those without one are internal."""
    rows = []
    fields = {name: info for kind in kinds for name, info in kind.model_fields.items()}
    texts = {name: text for kind in kinds for name, text in describe_fields(kind).items()}
    for name, info in fields.items():
        if name in texts and name not in INTERNAL and name not in without.model_fields:
            default = "" if name in list_models() else write_default(info)  # exactly one of those is required
            rows.append(f"| `{info.serialization_alias or name}` | {texts[name]} {default}".rstrip() + " |")
    return "\n".join(["| key | meaning |", "|---|---|", *rows])


def write_default(info: FieldInfo) -> str:
    """A default that says something."""
    default = info.get_default(call_default_factory=False)
    if info.is_required():
        return "Required."
    if isinstance(default, bool):
        return f"Default `{str(default).lower()}`."
    return f"Default `{default}`." if isinstance(default, int | float) or (isinstance(default, str) and default) else ""


def metrics_table(*, of_process: bool) -> str:
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
        for each in FAMILIES
        if each.is_of_process is of_process
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def words(meanings: Mapping[str, str]) -> str:
    return "; ".join(f"`{name}`: {meaning}" for name, meaning in meanings.items()) or "none"


def fill(page: str, sections: Mapping[str, str]) -> str:
    """The page with every section between its markers."""
    for name, text in sections.items():
        begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
        head, found, rest = page.partition(begin)
        if found:
            page = f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


def main() -> int:
    """Write what changed, or name it."""
    stale = [(path, text) for path, text in documents() if not path.exists() or path.read_text("utf-8") != text]
    for path, text in stale:
        print(f"{'out of date' if '--check' in sys.argv else 'wrote'}: {path.relative_to(DOCS.parent)}")
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
