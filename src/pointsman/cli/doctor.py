"""`pointsman doctor`: what is stuck or wrong in the database, and what would help."""

from __future__ import annotations

from contextlib import suppress

import click
from msgspec.structs import replace

from pointsman.cli.describe import show_json
from pointsman.cli.output import count, echo
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.steer import Decision, decision_options
from pointsman.engine.audit import AuditReport
from pointsman.engine.doctor import Diagnosis
from pointsman.errors import StoreUnusable
from pointsman.views.diagnoses import advise


@click.command()
@click.option("--audit", "audits", is_flag=True, help="Verify the audit trail instead: its hash chain, and every move in it.")
@click.option("--seal", metavar="SEAL", help="With --audit: a seal that you kept. Is everything up to it unchanged?")
@click.option("--fix", "fixes", is_flag=True, help="Repair what needs no person.")
@decision_options
@project_options
def command(*, audits: bool, seal: str | None, fixes: bool, decision: Decision, asked: Asked) -> int:
    """Show what is stuck or wrong in the whole database, of all tenants, and what would help.

    With --fix, repair what needs no person. A notice about each repair says who wanted it, and why (`pointsman notices`).

    With --audit, verify that nobody has changed the audit trail, not even the owner of the database. The last line is the seal
    of the whole trail. Keep it somewhere else: with --seal, a later audit proves that nothing before it has changed since.

    The exit code is 1 if anything was found.

    \b
    Examples:
      pointsman doctor
      pointsman doctor --fix --reason "after the restore"
      pointsman doctor --audit
      pointsman doctor --audit --seal 1300:6b51…
    """
    if seal is not None and not audits:
        raise click.UsageError("--seal needs --audit.", click.get_current_context())
    if not fixes and (decision.reason or decision.request_id):
        raise click.UsageError("--reason and --request-id are about a repair: add --fix.", click.get_current_context())
    if fixes and audits:
        raise click.UsageError("--audit changes nothing: leave out --fix.", click.get_current_context())
    if audits:
        return in_project(asked, lambda project: verify(project, seal, as_json=asked.as_json))
    return in_project(asked, lambda project: examine(project, decision if fixes else None, as_json=asked.as_json))


async def examine(project: Project, fix: Decision | None, *, as_json: bool) -> int:
    engine = project.engine
    repaired = await engine.repair(actor=fix.actor, reason=fix.reason, request_id=fix.request_id) if fix else []
    advised = await advise(engine, await engine.diagnose(), await engine.now())
    found = [replace(each, advice=project.complete(each.advice)) for each in advised]
    if as_json:
        echo(show_json({"findings": found, "repaired": repaired}))
        return 1 if found else 0
    if repaired:
        echo(f"repaired {count(len(repaired), 'finding')}", err=True)
    show_findings(found, "nothing is stuck, and nothing is wrong")
    if any(each.repairable for each in found):
        echo(f"\nto repair what needs no person: {project.hint('doctor', '--fix')}")
    return 1 if found else 0


async def verify(project: Project, seal: str | None, *, as_json: bool) -> int:
    """What could be verified is sealed afterwards, so that the next audit covers it; not by a role that may only read."""
    report = await project.engine.audit(seal)
    if report.unsealed and not report.findings:
        with suppress(StoreUnusable):
            await project.engine.seal()
            report = await project.engine.audit(seal)
    if as_json:
        echo(show_json(report))
    else:
        show_report(project, report)
    return 1 if report.findings else 0


def show_report(project: Project, report: AuditReport) -> None:
    show_findings(report.findings, "the audit trail is unchanged")
    if report.unsealed and not report.findings:
        echo(
            "The last transitions are not sealed yet. A worker seals them, and so does an audit by a user who may write.",
            err=True,
        )
    if report.seal is None:
        return
    echo(f"\nseal: {report.seal}")
    if not report.findings:
        hint = project.hint("doctor", "--audit", "--seal", report.seal)
        echo(f"Keep it outside of this database. To see later whether anything before it has changed: {hint}", err=True)


def show_findings(findings: list[Diagnosis], otherwise: str) -> None:
    for each in findings:
        repairable = click.style(" [repairable]", fg="yellow") if each.repairable else ""
        echo(f"{click.style(f'{each.kind} {each.entity_id}', bold=True)}: {each.finding}{repairable}")
        echo(f"    {each.advice}")
    if not findings:
        echo(otherwise)
