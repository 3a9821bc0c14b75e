"""The service's state as JSON, for `/status`, `/v1/models` and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.live.instance import Instance
    from prism.live.service import Service


def status_document(service: Service) -> dict[str, Any]:
    """Everything `prism status` shows."""
    kv = service.observer.kv
    return {
        "uptime_s": round(service.clock.now_s(), 3),
        "draining": service.draining,
        "requests": len(service.table),
        "devices": [
            {
                "name": device.name,
                "kind": device.kind,
                "kv_budget_bytes": device.kv_budget_bytes,
                "kv_used_bytes": sum(
                    kv[i.name].used_bytes
                    for i in service.fleet
                    if i.device is not None and i.device.name == device.name and i.name in kv
                ),
            }
            for device in service.config.devices
        ],
        "models": [_model(service, instance) for instance in service.fleet],
    }


def models_document(service: Service) -> dict[str, Any]:
    """OpenAI's model list; `status` is our addition."""
    data = []
    for instance in service.fleet:
        plan = instance.planned.plan
        data.append(
            {
                "id": instance.name,
                "object": "model",
                "created": service.clock.started_unix_s,
                "owned_by": "prism",
                "max_model_len": None if plan is None else plan.max_request_tokens,
                "status": {
                    "phase": instance.phase,
                    "detail": _detail(service, instance),
                    "device": None if instance.device is None else instance.device.name,
                },
            }
        )
    return {"object": "list", "data": data}


def ready_reason(service: Service) -> str | None:
    """Why the service is not ready to take requests; None when it is."""
    if service.draining:
        return "the service is stopping"
    if not any(instance.phase == "ready" for instance in service.fleet):
        return "no model is ready yet"
    return None


def _model(service: Service, instance: Instance) -> dict[str, Any]:
    requests = service.table.of_model(instance.name)
    running = sum(request.sent_unix_s is not None for request in requests)
    use = service.observer.kv.get(instance.name)
    kv = None
    if use is not None:
        kv = {"used_bytes": use.used_bytes, "floor_bytes": use.floor_bytes, "limit_bytes": use.limit_bytes}
    return {
        "name": instance.name,
        "phase": instance.phase,
        "detail": _detail(service, instance),
        "device": None if instance.device is None else instance.device.name,
        "starts": instance.starts,
        "pid": None if instance.process is None else instance.process.pid,
        "waiting": len(requests) - running,
        "running": running,
        "kv": kv,
    }


def _detail(service: Service, instance: Instance) -> str:
    if instance.detail:
        return instance.detail
    never_placed = instance.phase == "cold" and instance.device is None
    return service.failure_of(instance.name) if never_placed else ""
