"""The real a8-http on a loopback port, under /keyed/ with a key: `python a8_app.py PORT DATABASE KEYS`.

Writes the secrets of its keys to the file KEYS as JSON: one with every permission, and one for each set of
permissions that the contract's cases ask for.
"""

import json
import sys
from pathlib import Path

import uvicorn
from a8_http.app import create_app
from a8_http.organizations import create_organization
from a8_http.principals import PERMISSIONS, create_key
from a8_http.settings import Settings
from a8_http.store import Store
from fixture_app import WithKey

LIMITED = (("models:infer", "models:explain"), ("models:train",), ("models:infer", "models:train"))


def main(port: int, database: str, keys: Path) -> None:
    store = Store(database)
    store.migrate()
    organization = create_organization(store, "conformance")
    every = create_key(store, organization, "every", PERMISSIONS).secret
    limited = {
        ",".join(permissions): create_key(store, organization, "limited", permissions).secret
        for permissions in LIMITED
    }
    keys.write_text(json.dumps({"every": every, "limited": limited}), encoding="utf-8")
    rate = "1000000/minute"
    settings = Settings(port=port, database_url=database, rate_limit_key=rate, rate_limit_organization=rate)
    uvicorn.run(WithKey(create_app(settings), every), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
