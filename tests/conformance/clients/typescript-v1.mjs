// Lists and calls every tool with the TypeScript SDK 1.x, which speaks the handshake versions.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { callEveryTool } from "./every-tool.mjs";

await callEveryTool(
  () => new Client({ name: "typescript-v1", version: "1.0.0" }),
  (command, args) => new StdioClientTransport({ command, args, env: process.env }),
  (url, headers) => new StreamableHTTPClientTransport(url, { requestInit: { headers } }),
);
