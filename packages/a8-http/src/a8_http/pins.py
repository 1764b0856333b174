"""What contracts/a8 pins, from the code: `python -m a8_http.pins contracts/a8` rewrites the files."""

import json
import sys
import tempfile
from pathlib import Path

from a8_http import tools
from a8_http.app import create_app
from a8_http.settings import Settings
from a8_http.tickets import teachings


def pins() -> dict[str, str]:
    """The pinned files: name to content."""
    with tempfile.TemporaryDirectory() as folder:
        openapi = create_app(Settings(database_url=f"sqlite:///{folder}/a8.sqlite3")).openapi()
    # The version changes with every release and is no part of the contract.
    openapi["info"]["version"] = "@VERSION@"
    return {
        "tools.json": _json(list(tools.TOOLS)),
        "openapi.json": _json(openapi),
        "instructions.txt": tools.INSTRUCTIONS + "\n",
        # What a server is taught before the fixtures that need examples.
        "taught.jsonl": "".join(json.dumps(arguments) + "\n" for arguments in teachings()),
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, content in pins().items():
        (folder / name).write_text(content, encoding="utf-8")
