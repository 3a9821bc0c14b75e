"""KVPR, the pressure on a device's KV memory: weighted request rates over the bytes left for KV.

Prism, arXiv 2505.04021. v1: w = requests/s over the TTFT objective. v3 (OSDI'26 text): w = (prompt + decode
tokens)/s, times KV bytes per token of one tensor parallel rank, over the TPOT objective. The unit differs
between the two, so values compare within one only.
"""

import math

from prism.core.config import KvprVariant, PlacedModel
from prism.core.events import ModelLoad


def weighted_rate(model: PlacedModel, load: ModelLoad | None, variant: KvprVariant) -> float:
    """The weighted rate w of one model on one of its devices; 0.0 without traffic."""
    if load is None:
        return 0.0
    if variant == "v1":
        return load.requests_per_s / model.ttft_slo_s
    tokens_per_s = load.prompt_tokens_per_s + load.decode_tokens_per_s
    return tokens_per_s * model.kv_bytes_per_token / model.tp / model.tpot_slo_s


def kvpr(weighted_rates_sum: float, kv_left_bytes: int) -> float:
    """KVPR of a device; infinite when no KV byte is left."""
    return weighted_rates_sum / kv_left_bytes if kv_left_bytes > 0 else math.inf
