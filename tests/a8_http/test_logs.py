"""What the operator's log holds of a failure."""

import json
import subprocess
import sys

# In a process of its own: loggers keep the configuration of their first use.
FAILING = """
import sys
import structlog
from a8_http.logs import configure_logs

configure_logs("info")
log = structlog.get_logger("a8_http.test")


def fails():
    raise KeyError("what the request said")


try:
    fails()
except KeyError as error:
    log.exception("call failed")
    log.error("call failed", exc_info=True)
    log.error("call failed", exc_info=error)
    log.error("call failed", exc_info=sys.exc_info())
"""


def test_an_exception_is_logged_by_its_class_and_frames_without_its_text() -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    for line in lines:
        fields = json.loads(line)
        assert fields["event"] == "call failed"
        assert fields["exception"] == "KeyError"
        assert fields["frames"] == ["<string>:15 <module>", "<string>:11 fails"]
        assert "exc_info" not in fields
        assert "what the request said" not in line
