"""Model providers and MCP toolsets; only `app` imports them."""
