"""Lists and calls every tool with the fastmcp client; runs in an environment of its own."""

import asyncio
import json
import os
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport


async def main(target: dict[str, Any]) -> None:
    if "command" in target:
        first, *rest = target["command"]
        transport: Any = StdioTransport(command=first, args=rest, env=dict(os.environ))
    else:
        transport = StreamableHttpTransport(target["url"], headers=target["headers"])
    async with Client(transport) as client:
        listed = [tool.name for tool in await client.list_tools()]
        asked = [call["name"] for call in target["calls"]]
        if listed != asked:
            sys.exit(f"listed {listed}, expected {asked}")
        for call in target["calls"]:
            result = await client.call_tool(call["name"], call["arguments"])
            if not result.structured_content:
                sys.exit(f"{call['name']}: no structured content")
    print(f"{len(listed)} tools listed and called")


asyncio.run(main(json.loads(sys.argv[1])))
