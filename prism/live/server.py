"""`prism serve`'s process: socket, signals, HTTP server, and the order in which things begin and end.

First signal: stop taking requests, drain, TERM the engines, KILL what stays. Second signal: at once. Both
work from the moment the loop runs, so also while engines start.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from prism.live.api_keys import load_api_keys
from prism.live.app import make_app
from prism.live.connection import DroppableConnection
from prism.live.runtime_dir import open_runtime_dir
from prism.live.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prism.config import Config
    from prism.config.budget import PlannedModel

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BACKLOG = 2048
_HTTP_END_S = 2
_SPARE_CONNECTIONS = 256  # for operators, and clients that keep idle connections

log = logging.getLogger("prism.server")


class ServeError(RuntimeError):
    """The service could not start; the message says what would help."""


class _HttpServer(uvicorn.Server):
    """uvicorn without signal handling of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


def serve(config: Config, planned: list[PlannedModel]) -> None:
    """Serve until a signal ends it.

    Raises `ServeError`, `RuntimeDirError`, `ApiKeyError` or the ledger's errors.
    """
    uvloop.run(_serve(config, planned))


async def _serve(config: Config, planned: list[PlannedModel]) -> None:
    stop, at_once = asyncio.Event(), asyncio.Event()
    _watch_signals(stop, at_once)
    api_keys = load_api_keys(config.server.api_key_file)
    listener = _listen(config)
    try:
        runtime = open_runtime_dir(config.runtime_dir, config.log_dir)
        try:
            service = Service(config, planned, runtime)
            await _run(service, api_keys, listener, stop, at_once)
        finally:
            runtime.close()
    finally:
        listener.close()
    log.info("stopped")


async def _run(
    service: Service,
    api_keys: tuple[bytes, ...],
    listener: socket.socket,
    stop: asyncio.Event,
    at_once: asyncio.Event,
) -> None:
    settings = uvicorn.Config(
        make_app(service, api_keys),
        http=DroppableConnection,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_HTTP_END_S,
        limit_concurrency=2 * service.table.max_requests + _SPARE_CONNECTIONS,
        server_header=False,
    )
    http = _HttpServer(settings)
    serving = asyncio.create_task(http.serve(sockets=[listener]), name="http")
    try:
        service.start()
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        if not api_keys and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            log.warning("anyone who reaches %s can use the models: set server.api_key_file", host)
        log.info("listening on http://%s:%d (%d models)", shown, port, len(service.config.models))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            log.info(
                "stopping: draining for at most %g s (a second signal ends everything at once)",
                service.config.server.drain_s,
            )
            await service.drain(at_once)
    finally:
        await service.close(at_once)
        http.should_exit = True
        http.force_exit = at_once.is_set()
        await serving


def _watch_signals(stop: asyncio.Event, at_once: asyncio.Event) -> None:
    def on_signal(number: int) -> None:
        log.info("got %s", signal.Signals(number).name)
        if stop.is_set():
            at_once.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)


def _listen(config: Config) -> socket.socket:
    """The bound socket, before anything else is started: a taken port is found out at once."""
    server = config.server
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServeError(f"server.host {server.host!r}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ServeError(
            f"cannot listen on {server.host}:{server.port} ({error.strerror}); "
            "set another server.port (0 takes a free one)"
        ) from None
    listener.setblocking(False)
    return listener
