"""The OpenAPI document as one page for people: no script, nothing fetched from elsewhere."""

import json
from html import escape
from typing import Any

# Nothing but the page itself and its own style.
SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; } h2 b { font-weight: 600; margin-right: .5rem; color: #06c; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { background: #8881; padding: .75rem; overflow: auto; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .3rem .6rem .3rem 0; }
td { vertical-align: top; border-top: 1px solid #8884; } :root { color-scheme: light dark; }
"""


def page(document: dict[str, Any]) -> str:
    """HTML of an OpenAPI document whose bodies are references to its components."""
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(
        f'<h3 id="{escape(name)}">{escape(name)}</h3>{_code(schema)}'
        for name, schema in document["components"]["schemas"].items()
    )
    info = document["info"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])}</p>"
        "<p>Every call carries <code>Authorization: Bearer KEY</code>. "
        'The same as data: <a href="openapi.json">openapi.json</a>.</p>'
        f"{operations}<h2>Schemas</h2>{schemas}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = "".join(
        f"<p><code>{escape(one['name'])}</code> ({escape(one['in'])}): {escape(one['description'])}</p>"
        for one in operation.get("parameters", [])
    )
    body = f"<p>Body: {_link(operation['requestBody'])}</p>" if "requestBody" in operation else ""
    rows = "".join(
        f"<tr><td>{escape(status)}<td>{_link(answer)}<td>{escape(answer['description'])}"
        for status, answer in operation["responses"].items()
    )
    return (
        f"<h2><b>{escape(method.upper())}</b><code>{escape(path)}</code></h2>"
        f"<p>{escape(operation['summary'])}. {escape(operation['description'])}</p>{parameters}{body}"
        f"<table><tr><th>status<th>body<th>when{rows}</table>"
    )


def _link(holder: dict[str, Any]) -> str:
    name = holder["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return f'<a href="#{escape(name)}">{escape(name)}</a>'


def _code(schema: Any) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"
