"""judgevet over stdio: typed judgment questions and acceptance policies as MCP tools."""

from judgevet_stdio.mcp_entrypoint import main, run_stdio
from judgevet_stdio.server import create_mcp_server

__all__ = ["create_mcp_server", "main", "run_stdio"]
