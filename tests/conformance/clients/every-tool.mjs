// What both clients do: one argument, {"command": [...]} or {"url", "headers"}, with the calls to make.
const fail = (reason) => {
  console.error(reason);
  process.exit(1);
};

export async function callEveryTool(newClient, overStdio, overHttp) {
  const { command, url, headers, calls } = JSON.parse(process.argv[2]);
  const transport = command ? overStdio(command[0], command.slice(1)) : overHttp(new URL(url), headers);
  const client = newClient();
  await client.connect(transport);
  const listed = (await client.listTools()).tools.map((tool) => tool.name);
  const asked = calls.map((call) => call.name);
  if (listed.join() !== asked.join()) fail(`listed ${listed}, expected ${asked}`);
  for (const call of calls) {
    const result = await client.callTool(call);
    if (result.isError || !result.structuredContent) fail(`${call.name}: ${JSON.stringify(result)}`);
  }
  await client.close();
  console.log(`${listed.length} tools listed and called`);
  process.exit(0);
}
