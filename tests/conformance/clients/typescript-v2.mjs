// Lists and calls every tool with the TypeScript SDK 2.x, which negotiates 2026-07-28 by itself.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { callEveryTool } from "./every-tool.mjs";

await callEveryTool(
  () => new Client({ name: "typescript-v2", version: "1.0.0" }, { versionNegotiation: { mode: "auto" } }),
  (command, args) => new StdioClientTransport({ command, args, env: process.env }),
  (url, headers) => new StreamableHTTPClientTransport(url, { requestInit: { headers } }),
);
