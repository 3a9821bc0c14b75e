"""Make the demo's three models: ``python tools/make_models.py [OUTDIR]`` (default: ./models).

SmolLM2-135M-Instruct is real. The two others have random weights and other architectures; they are narrow and
shallow, so they compute fast, but their few layers keep as many KV bytes per token as SmolLM2's thirty.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(ROOT))

from tools.families import Shape, make_random_model  # noqa: E402
from tools.smollm2 import SourceError, make_smollm2  # noqa: E402

# SmolLM2: 30 layers x 3 KV heads x 64 x (K, V) x 2 bytes.
SMOLLM2_KV_BYTES_PER_TOKEN = 23_040
# 5 layers x 9 KV heads x 128 x (K, V) x 2 bytes: the same number.
QWEN3_SHAPE = Shape(
    layers=5, hidden=256, heads=9, kv_heads=9, head_dim=128, intermediate=512, vocab_size=4096
)
# 9 layers x 5 KV heads x 128 x (K, V) x 2 bytes: the same (this family takes head_dim = hidden / heads).
OLMO2_SHAPE = Shape(
    layers=9, hidden=640, heads=5, kv_heads=5, head_dim=128, intermediate=640, vocab_size=4096
)

MAKERS: dict[str, Callable[[Path], bool]] = {
    "smollm2-135m": make_smollm2,
    "random-qwen3": lambda folder: make_random_model(folder, "qwen3", QWEN3_SHAPE, seed=11),
    "random-olmo2": lambda folder: make_random_model(folder, "olmo2", OLMO2_SHAPE, seed=12),
}


def main() -> int:
    """Make what is missing; 1 when SmolLM2's package is missing or damaged."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("outdir", type=Path, nargs="?", default=ROOT / "models")
    arguments = parser.parse_args()
    for name, make in MAKERS.items():
        started_s = time.monotonic()
        try:
            made = make(arguments.outdir / name)
        except SourceError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(
            f"{'made' if made else 'kept'} {arguments.outdir / name} ({time.monotonic() - started_s:.1f} s)"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
