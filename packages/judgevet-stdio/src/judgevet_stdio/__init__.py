"""An MCP server over stdio that answers typed judgment questions and evaluates acceptance policies."""
