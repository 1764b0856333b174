"""An MCP server over Streamable HTTP, taught by example; it abstains below the minimum accuracy asked."""

from importlib.metadata import version

__version__ = version("a8-http")
