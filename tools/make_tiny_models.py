"""Make tiny random-weight models: ``python tools/make_tiny_models.py OUTDIR --families llama qwen3``.

Each lands in OUTDIR/tiny-FAMILY with tokenizer and chat template; a folder made from the same recipe is kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the repository root is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.families import FAMILIES, LATENT_FAMILIES, Shape, make_random_model


def main() -> int:
    """Make what is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--families", nargs="+", choices=sorted(FAMILIES), default=["llama", "qwen3"])
    parser.add_argument("--layers", type=int, default=Shape().layers)
    arguments = parser.parse_args()
    shape = Shape(layers=arguments.layers)
    for family in arguments.families:
        folder = arguments.outdir / f"tiny-{family}"
        made = make_random_model(folder, family, shape)
        is_latent = family in LATENT_FAMILIES
        per_token_bytes = shape.latent_bytes_per_token() if is_latent else shape.kv_bytes_per_token()
        print(f"{'made' if made else 'kept'} {folder} ({per_token_bytes} KV bytes per token)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
