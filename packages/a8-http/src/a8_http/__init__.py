"""An MCP server over Streamable HTTP, taught by example; it abstains below the minimum accuracy asked."""
