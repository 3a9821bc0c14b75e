"""The table people read."""

from rich.table import Table

from prism.report.figures import Figures, Report


def report_table(report: Report, title: str) -> Table:
    """A row per model and one in all; times in ms, attainment in percent."""
    table = Table(title=title, caption=f"over {report.span_s:.1f} s; attainment over all arrivals")
    table.add_column("model", overflow="fold")
    for heading in (
        "requests", "not ok", "TTFT p50", "p95", "p99 ms", "TPOT p50", "p95 ms",
        "TTFT met", "TPOT met", "both met", "tokens/s",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for name, figures in report.models.items():
        table.add_row(name, *_cells(figures))
    table.add_section()
    table.add_row("all", *_cells(report.total), style="bold")
    return table


def _cells(figures: Figures) -> list[str]:
    return [
        str(figures.requests),
        str(figures.requests - figures.ok),
        _ms(figures.ttft_p50_s),
        _ms(figures.ttft_p95_s),
        _ms(figures.ttft_p99_s),
        _ms(figures.tpot_p50_s),
        _ms(figures.tpot_p95_s),
        _percent(figures.attainment_ttft),
        _percent(figures.attainment_tpot),
        _percent(figures.attainment_joint),
        f"{figures.output_tokens_per_s:.1f}",
    ]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"
