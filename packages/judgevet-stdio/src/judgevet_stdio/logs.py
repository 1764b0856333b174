"""Diagnostics on stderr: one line an event, without what was judged and without exception texts."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any, Literal

import structlog

LogFormat = Literal["auto", "json", "console"]


def _without_exception_text(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    # The frames tell where it failed; the text of somebody else's exception may quote the state or a key.
    info = event.pop("exc_info", None)
    if isinstance(info, tuple) and info[1] is not None:
        event["error_type"] = info[0].__name__
        event["frames"] = "".join(traceback.format_tb(info[2]))
    return event


def configure_logging(log_format: LogFormat = "auto", level: str = "info") -> None:
    """Sends every logger's events to stderr: as JSON lines, unless it is a terminal or `console` is asked."""
    as_json = log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso"),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _without_exception_text,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # At a lower level these log addresses and headers, or the lines they could not read.
    for chatty in ("httpx", "httpcore", "mcp"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
