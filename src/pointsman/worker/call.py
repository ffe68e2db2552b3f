"""Calls a Python function for a task: `python -m pointsman.worker.call`, or within a thread of the worker.

The file $POINTSMAN_CALL has the request: {"function": "package.module:function", "arguments": {…}, "offered": {…},
"paths": […]}. Offered values are passed only to parameters of that name. The result is written as JSON to $POINTSMAN_OUTPUT; an
error is written to $POINTSMAN_OUTPUT.problem for the worker, and with its traceback to stderr for the user.

This file imports nothing of Pointsman, and little else before it is needed, so that the function starts quickly.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import queue
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Literal

MESSAGE_LENGTH = 2000
_encode = json.JSONEncoder(allow_nan=False).encode


class Cancel:
    """The value of a parameter called `cancel`: check it now and then, or wait for it instead of sleeping."""

    def __init__(self) -> None:
        # Unlike an Event, a SimpleQueue may be used by a signal handler that interrupts its own thread while it waits.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_cancelled = False
        self._listeners: list[Callable[[], object]] = []

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is cancelled or the time is over; whether it is cancelled."""
        if not self._is_cancelled:
            try:
                self._bell.get(timeout=seconds)
            except queue.Empty:
                return False
            self._bell.put(None)  # for other waiters
        return True

    def cancel(self) -> None:
        self._is_cancelled = True
        self._bell.put(None)
        for listener in self._listeners:
            listener()

    def on_cancel(self, listener: Callable[[], object]) -> None:
        self._listeners.append(listener)
        if self._is_cancelled:
            listener()


@dataclass(frozen=True)
class Called:
    """The result of a call: JSON, or the reason why there is none."""

    kind: Literal["returned", "not_started", "raised"]
    result: str = "null"
    message: str = ""
    retryable: bool = True
    traceback: str = ""


def call(name: str, arguments: Mapping[str, Any], offered: Mapping[str, Any], cancel: Cancel) -> Called:
    """Call the function, asynchronous or not, and encode the result as JSON."""
    try:
        function = _find(name)
        if isinstance(function, str):
            return Called("not_started", message=function, retryable=False)
        given, problem = _fit(name, function, arguments, {**offered, "cancel": cancel})
        if problem:
            return Called("not_started", message=problem, retryable=False)
        value = function(**given)
        if inspect.isawaitable(value):
            value = _run_async(value, cancel)
    except _Cancelled:
        return Called("raised", message="was cancelled")
    except Exception as error:  # noqa: BLE001  # the function may raise anything
        return _describe(error)
    return _as_json(name, value)


class _Cancelled(Exception):
    """An asynchronous function was interrupted."""


def _run_async(value: Any, cancel: Cancel) -> Any:
    import asyncio

    async def run() -> Any:
        task = asyncio.ensure_future(value)
        loop = asyncio.get_running_loop()
        cancel.on_cancel(lambda: None if loop.is_closed() else loop.call_soon_threadsafe(task.cancel))
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise _Cancelled from None


def takes_cancel(name: str) -> bool:
    """Whether the function can stop early: it has a parameter for that, or is asynchronous."""
    try:
        function = _find(name)
        return callable(function) and (inspect.iscoroutinefunction(function) or "cancel" in _parameters(function))
    except Exception:  # noqa: BLE001  # the call itself reports it
        return False


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    signature = _signature(function)
    return signature.parameters if signature else {}


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        # Other callables may not be hashable.
        return _signature_of_function(function) if isinstance(function, FunctionType) else inspect.signature(function)
    except ValueError:  # some built-in functions have no signature
        return None


_signature_of_function = lru_cache(maxsize=1000)(inspect.signature)


def _find(name: str) -> Callable[..., Any] | str:
    """The function, or the reason why there is none."""
    module_name, colon, path = name.partition(":")
    if not colon or not path:
        return f"'{name}' does not name a function; write it as package.module:function"
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            return f"there is no module '{error.name}' for '{name}'; looked in {_few(list(dict.fromkeys(sys.path)))}"
        raise
    for part in path.split("."):
        if not hasattr(found, part):
            return f"there is no '{path}' in the module '{module_name}' ({getattr(found, '__file__', None) or 'built in'})"
        found = getattr(found, part)
    return found if callable(found) else f"'{name}' is not a function: its type is {type(found).__name__}"


def _few(folders: list[str]) -> str:
    folders = [folder for folder in folders if folder]
    return os.pathsep.join(folders[:3]) + (f" and {len(folders) - 3} more" if len(folders) > 3 else "")


def _fit(
    name: str, function: Callable[..., Any], arguments: Mapping[str, Any], offered: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    signature = _signature(function)
    if signature is None:
        return dict(arguments), ""
    given = {key: value for key, value in offered.items() if key in signature.parameters} | dict(arguments)
    try:
        signature.bind(**given)
    except TypeError as error:
        return {}, f"'{name}' cannot be called with ({', '.join(given)}): {error}; it takes {signature}"
    return given, ""


def _describe(error: BaseException) -> Called:
    """Without the frames of this file, which do not help the reader."""
    import traceback

    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        lines = "".join(traceback.format_exception(type(error), error, frames))
        message = f"raised {type(error).__name__}: {error}".rstrip(": ")
    except Exception:  # noqa: BLE001  # its own __str__ may fail
        lines = message = f"raised {type(error).__name__}, whose message cannot be shown"
    return Called("raised", message=message[:MESSAGE_LENGTH], traceback=lines)


def _as_json(name: str, value: Any) -> Called:
    try:
        return Called("returned", result=_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        message = f"'{name}' returned a {type(value).__name__} that cannot be written as JSON: {error}"
        return Called("raised", message=message, retryable=False)


def main() -> int:
    with open(os.environ["POINTSMAN_CALL"], encoding="utf-8") as file:  # noqa: PTH123 - starts faster without pathlib
        request = json.load(file)
    output = Path(os.environ["POINTSMAN_OUTPUT"])
    sys.path[:0] = [path for path in request.get("paths", []) if path not in sys.path]
    cancel = Cancel()

    def on_terminate(_number: int, _frame: FrameType | None) -> None:
        cancel.cancel()

    if takes_cancel(request["function"]):
        signal.signal(signal.SIGTERM, on_terminate)
    called = call(request["function"], request["arguments"], request.get("offered", {}), cancel)
    if called.kind == "returned":
        _write(output, called.result)
        return 0
    problem = {"kind": called.kind, "message": called.message, "retryable": called.retryable}
    _write(output.with_name(f"{output.name}.problem"), json.dumps(problem))
    sys.stderr.write(called.traceback or f"{called.message}\n")
    return 1


def _write(path: Path, text: str) -> None:
    """Write atomically."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(text, "utf-8")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
