"""Logs on stderr, one JSON object a line; they hold names, times and outcomes, never content or secrets."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

import structlog
from structlog.typing import EventDict


def configure_logs(level: str) -> None:
    """Send structlog's events and the libraries' warnings to stderr."""
    minimum = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            exception_as_names,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(minimum),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(NamesOnly())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def exception_as_names(logger: Any, method: str, fields: EventDict) -> EventDict:
    """For structlog: an event's exception becomes its class and its frames."""
    given = fields.pop("exc_info", None)
    error = given[1] if isinstance(given, tuple) else sys.exc_info()[1] if given is True else given
    if isinstance(error, BaseException):
        fields.update(where(error))
    return fields


class NamesOnly(logging.Formatter):
    """A library's record without its arguments and its exception's text: both may quote a request."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "event": str(record.msg),
            "logger": f"{record.name}:{record.lineno}",
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields.update(where(record.exc_info[1]))
        return json.dumps(fields)


def where(error: BaseException) -> dict[str, Any]:
    """An exception's class and frames, without its text."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "exception": type(error).__qualname__,
        "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
