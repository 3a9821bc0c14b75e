"""The table people read. It fits a terminal of 80 columns."""

from rich import box
from rich.table import Table

from prism.report.figures import Figures, Report

_HEADINGS = (
    "sent",
    "not\nok",
    "TTFT ms  \np50   p95   p99",
    "TPOT ms\np50  p95",
    "SLO met %\nTTFT TPOT both",
    "output\ntokens/s",
)

_WHOLE_FROM_S = 0.1  # longer times are shown in whole ms


def report_table(report: Report, title: str) -> Table:
    """A row per model and one in all; times in ms, attainment in percent of all arrivals."""
    table = Table(
        title=title,
        caption=f"over {report.span_s:.1f} s; attainment over all arrivals",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    table.add_column("model", overflow="fold", min_width=12)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, figures in report.models.items():
        table.add_row(name, *_cells(figures))
    table.add_section()
    table.add_row("all", *_cells(report.total), style="bold")
    return table


def _cells(figures: Figures) -> list[str]:
    ttft = (figures.ttft_p50_s, figures.ttft_p95_s, figures.ttft_p99_s)
    tpot = (figures.tpot_p50_s, figures.tpot_p95_s)
    met = (figures.attainment_ttft, figures.attainment_tpot, figures.attainment_joint)
    return [
        str(figures.requests),
        str(figures.requests - figures.ok),
        " ".join(f"{_ms(value):>5}" for value in ttft),
        " ".join(f"{_ms(value):>4}" for value in tpot),
        " ".join(f"{_percent(value):>4}" for value in met),
        f"{figures.output_tokens_per_s:.1f}",
    ]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f}" if seconds >= _WHOLE_FROM_S else f"{seconds * 1000:.1f}"


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return "100" if share == 1.0 else f"{min(share * 100, 99.9):.1f}"
