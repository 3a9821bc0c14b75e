"""Latency and SLO figures of a run, live or simulated: the same numbers, table and JSON for both."""

from prism.report.figures import Figures, Report, make_report
from prism.report.outcome import RequestOutcome, Slo, Status
from prism.report.percentile import percentile
from prism.report.table import report_table

__all__ = [
    "Figures",
    "Report",
    "RequestOutcome",
    "Slo",
    "Status",
    "make_report",
    "percentile",
    "report_table",
]
