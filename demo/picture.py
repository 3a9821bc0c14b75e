"""The picture: mapped KV bytes per model over time, stacked, under the budget line."""

from __future__ import annotations

from pathlib import Path

from demo.movement import MemorySeries

MIB = 2**20
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")


def draw_memory(series: MemorySeries, budget_bytes: int, path: Path) -> None:
    """Write a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.2), dpi=120)
    stacks = [[value / MIB for value in values] for values in series.mapped_bytes.values()]
    axes.stackplot(
        series.times_s, *stacks, labels=list(series.mapped_bytes), colors=COLORS, step="post", alpha=0.9
    )
    axes.axhline(budget_bytes / MIB, color="black", linestyle="--", linewidth=1.2, label="budget")
    axes.set_xlabel("seconds")
    axes.set_ylabel("mapped KV memory (MiB), kernel's account")
    axes.set_xlim(series.times_s[0], series.times_s[-1])
    axes.set_ylim(0, budget_bytes / MIB * 1.12)
    axes.legend(loc="upper center", ncols=4, fontsize=8, frameon=False, bbox_to_anchor=(0.5, 1.1))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
