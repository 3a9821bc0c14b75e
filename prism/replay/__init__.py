"""Open-loop replay of a request trace against an OpenAI-compatible endpoint."""

from prism.replay.client import ClientSettings, CompletionClient
from prism.replay.outcomes import write_outcomes
from prism.replay.prompts import PromptMaker
from prism.replay.runner import Progress, ReplaySettings, replay

__all__ = [
    "ClientSettings",
    "CompletionClient",
    "Progress",
    "PromptMaker",
    "ReplaySettings",
    "replay",
    "write_outcomes",
]
