"""Make the demo's trace: ``python -m demo.make_trace demo/trace.csv``.

The models take turns: a burst of long prompts on one while the others see a request now and then; the first
model's turn comes twice, so that every model's memory has somebody to go to.
"""

from __future__ import annotations

import sys

from prism.traces import write_trace
from prism.traces.generator import Bursts, Lengths, SyntheticModel, SyntheticTrace, generate

PROMPT = Lengths(median=240, sigma=0.1, max=265)
OUTPUT = Lengths(median=18, sigma=0.3, max=40)
TURN_ON_S = 4.0
TURN_GAP_S = 11.0
TURNS = 4

TRACE = SyntheticTrace(
    models=(
        SyntheticModel("random-qwen3", PROMPT, OUTPUT, rate_share=46.0),
        SyntheticModel("smollm2-135m", PROMPT, OUTPUT, rate_share=13.0),
        SyntheticModel("random-olmo2", PROMPT, OUTPUT, rate_share=25.0),
    ),
    duration_s=TURNS * (TURN_ON_S + TURN_GAP_S),
    requests_per_s=84 / 60,
    cv=0.3,
    bursts=Bursts("alternating", on_s=TURN_ON_S, gap_s=TURN_GAP_S, idle_share=0.1),
    seed=5,
)

if __name__ == "__main__":
    rows = generate(TRACE)
    write_trace(sys.argv[1], rows)
    print(
        f"{sys.argv[1]}: {len(rows)} requests, "
        f"{sum(row.prompt_tokens + row.output_tokens for row in rows)} tokens"
    )
