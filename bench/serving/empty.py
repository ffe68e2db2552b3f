"""The peer of the server: FastAPI with one route that does nothing.

    python -m bench.serving.empty own    behind the listener of `pointsman serve`
    python -m bench.serving.empty best   as uvicorn is quickest: uvloop and httptools

It prints its URL when it is ready.
"""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from fastapi import FastAPI

from pointsman.server.listener import KEEP_ALIVE_SECONDS, Listener, open_socket

application = FastAPI()


@application.get("/")
async def answer() -> dict[str, str]:
    return {}


def serve_as_we_do() -> None:
    listener = Listener(application, open_socket("127.0.0.1", 0), lambda: None)
    print(listener.url, flush=True)
    asyncio.run(listener.serve())


def serve_at_best() -> None:
    listening = open_socket("127.0.0.1", 0)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_config=None,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    serve_at_best() if sys.argv[1] == "best" else serve_as_we_do()
