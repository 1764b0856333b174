"""An MCP server over Streamable HTTP that is taught by example and abstains below the minimum accuracy asked."""
