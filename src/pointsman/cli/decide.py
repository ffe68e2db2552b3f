"""`pointsman approve`, `reject`, `accept`, `answer` and `start`: what tasks wait for people to decide."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from pointsman.cli.inbox import prompt_for_answer
from pointsman.cli.output import echo
from pointsman.cli.project import Asked, Project, in_project, project_options
from pointsman.cli.steer import Decision, decision_options, one_task_argument, run_argument, steer, task_argument
from pointsman.engine.questions import Question, read_question
from pointsman.errors import Problem, RequestInvalid
from pointsman.views.find import find_run, find_task


@click.command()
@run_argument
@task_argument
@decision_options
@project_options
def approve(run: str, task: str | None, *, decision: Decision, asked: Asked) -> None:
    """Approve TASK of RUN, or every task of RUN that waits for an approval.

    Without TASK it is safe to repeat: where nothing waits for an approval, nothing happens.

    \b
    Examples:
      pointsman approve latest
      pointsman approve 9ef05a58 ship --as ada --reason "the tests are green"
    """
    in_project(asked, lambda project: steer(project, "approve", run, task, decision, as_json=asked.as_json))


@click.command()
@run_argument
@one_task_argument
@click.option("--comment", "-m", metavar="TEXT", help="What the next attempt should know: it gets it as $POINTSMAN_COMMENT.")
@decision_options
@project_options
def reject(run: str, task: str, comment: str | None, *, decision: Decision, asked: Asked) -> None:
    """Reject TASK of RUN: an approval fails, a result that waits for a review is done again.

    \b
    Examples:
      pointsman reject latest ship --reason "not on a Friday"
      pointsman reject latest draft --comment "shorter, and with figures"
    """
    in_project(
        asked, lambda project: steer(project, "reject", run, task, replace(decision, comment=comment), as_json=asked.as_json)
    )


@click.command()
@run_argument
@one_task_argument
@decision_options
@project_options
def accept(run: str, task: str, *, decision: Decision, asked: Asked) -> None:
    """Accept the result of TASK of RUN, which waits for a review.

    \b
    Examples:
      pointsman accept latest draft
    """
    in_project(asked, lambda project: steer(project, "accept", run, task, decision, as_json=asked.as_json))


@click.command()
@run_argument
@one_task_argument
@click.argument("text", metavar="[ANSWER]", required=False)
@decision_options
@project_options
def answer(run: str, task: str, text: str | None, *, decision: Decision, asked: Asked) -> None:
    """Answer the question of TASK of RUN. Another attempt gets the answer as $POINTSMAN_ANSWER.

    Without ANSWER it asks for it on a terminal, and reads it from stdin otherwise; an empty one is the default of the question.

    \b
    Examples:
      pointsman answer latest deploy
      pointsman answer latest deploy "eu-west"
      pointsman answer latest deploy < answer.json
    """
    in_project(asked, lambda project: give_answer(project, run, task, text, decision, as_json=asked.as_json))


async def give_answer(project: Project, run: str, task: str, text: str | None, decision: Decision, *, as_json: bool) -> None:
    if text is None:
        found = await find_task(project.engine, await find_run(project.engine, run), task)
        text = read_answer(read_question(found.question or ""))
        if not text and found.question:
            raise RequestInvalid([Problem("", f"There is no answer. Give it: {project.hint('answer', run, task, 'ANSWER')}")])
        decision = replace(decision, epoch=found.epoch)
    await steer(project, "answer", run, task, replace(decision, answer=text), as_json=as_json)


def read_answer(question: Question) -> str:
    """From a person at a terminal, or everything on stdin; nothing is the default."""
    if sys.stdin.isatty():
        echo(question.text, err=True)
        return prompt_for_answer(question.options, question.suggestion)
    return sys.stdin.read().removesuffix("\n") or question.suggestion or ""


@click.command()
@run_argument
@task_argument
@decision_options
@project_options
def start(run: str, task: str | None, *, decision: Decision, asked: Asked) -> None:
    """Start TASK of RUN, or every task of RUN that waits to be started (`start: manual`).

    \b
    Examples:
      pointsman start latest
      pointsman start 9ef05a58 draft
    """
    in_project(asked, lambda project: steer(project, "ready", run, task, decision, as_json=asked.as_json))
