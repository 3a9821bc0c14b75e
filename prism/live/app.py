"""The HTTP face: OpenAI's routes and the service's own."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as HttpRoute

from prism.live.api_request import Route, parse_request
from prism.live.body import read_body
from prism.live.exchange import ExchangeResponse
from prism.live.last_resort import LastResort
from prism.live.metrics import CONTENT_TYPE
from prism.live.openai_errors import ApiError
from prism.live.status import models_document, ready_reason, status_document

if TYPE_CHECKING:
    from prism.live.service import Service

log = logging.getLogger("prism.http")

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(service: Service, api_keys: tuple[bytes, ...]) -> Starlette:
    """The ASGI application. With `api_keys`, /v1 and /status want one of them as bearer token."""
    handlers = Handlers(service, api_keys)
    routes = [
        HttpRoute("/v1/chat/completions", handlers.chat_completions, methods=["POST"]),
        HttpRoute("/v1/completions", handlers.completions, methods=["POST"]),
        HttpRoute("/v1/models", handlers.models, methods=["GET"]),
        HttpRoute("/v1/models/{name:path}", handlers.model, methods=["GET"]),
        HttpRoute("/health", handlers.health, methods=["GET"]),
        HttpRoute("/ready", handlers.ready, methods=["GET"]),
        HttpRoute("/metrics", handlers.metrics, methods=["GET"]),
        HttpRoute("/status", handlers.status, methods=["GET"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(LastResort)],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error},
    )


class Handlers:
    """One method per route."""

    def __init__(self, service: Service, api_keys: tuple[bytes, ...]) -> None:
        self._service = service
        self._api_keys = api_keys

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._complete("/v1/chat/completions", request)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._complete("/v1/completions", request)

    async def models(self, request: Request) -> Response:
        """GET /v1/models: every configured model, with its state."""
        self._authorize(request)
        return JSONResponse(models_document(self._service))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        self._authorize(request)
        name = request.path_params["name"]
        for entry in models_document(self._service)["data"]:
            if entry["id"] == name:
                return JSONResponse(entry)
        raise ApiError(404, f"model {name!r} is not served here", "model_not_found", "model")

    async def health(self, _request: Request) -> Response:
        """GET /health: the process is alive."""
        return PlainTextResponse("ok\n")

    async def ready(self, _request: Request) -> Response:
        """GET /ready: at least one model serves, and no stop is under way."""
        reason = ready_reason(self._service)
        if reason is None:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(reason + "\n", status_code=503, headers={"retry-after": "1"})

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics."""
        service = self._service
        for model in status_document(service)["models"]:
            service.metrics.requests_now(model["name"], model["waiting"], model["running"])
        return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def status(self, request: Request) -> Response:
        """GET /status."""
        self._authorize(request)
        return JSONResponse(status_document(self._service))

    async def _complete(self, route: Route, request: Request) -> Response:
        self._authorize(request)
        body = await read_body(request, self._service.config.server.max_body_bytes)
        live = await self._service.admit(parse_request(route, body))
        return ExchangeResponse(self._service.exchanges, live)

    def _authorize(self, request: Request) -> None:
        if not self._api_keys:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip().encode()
        # every key is compared, so that the time taken tells nothing
        matches = [hmac.compare_digest(given, expected) for expected in self._api_keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(401, "a valid API key is needed: `Authorization: Bearer KEY`", "invalid_api_key")


async def _api_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return Response(error.body(), error.status, {"content-type": "application/json", **error.headers()})


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown route or method, in OpenAI's shape."""
    if not isinstance(error, HTTPException):
        raise error
    what = f"{request.method} {request.url.path}"
    return await _api_error(request, ApiError(error.status_code, f"{what}: {error.detail}", "unknown_route"))
