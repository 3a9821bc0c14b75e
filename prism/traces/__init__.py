"""Traces: who asked which model when, for how many tokens. Format, reader, writer, generator, statistics."""

from prism.traces.format import TraceError, TraceRequest
from prism.traces.reader import read_trace
from prism.traces.writer import write_trace

__all__ = ["TraceError", "TraceRequest", "read_trace", "write_trace"]
