// A client on the TypeScript SDK 1.x. It reads {url, token, calls: [{tool, arguments}]} from standard
// input, lists the tools, makes the calls in order and prints {tools, answers}. After the list this SDK
// checks each answer, refusals too, against the tool's output schema; what it then throws is an answer
// {threw}.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { text } from "node:stream/consumers";

const { url, token, calls } = JSON.parse(await text(process.stdin));
const client = new Client({ name: "sdk-1", version: "1" });
await client.connect(
  new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { Authorization: `Bearer ${token}` } } }),
);
const { tools } = await client.listTools();
const answers = [];
for (const { tool, arguments: args } of calls) {
  try {
    answers.push(await client.callTool({ name: tool, arguments: args }));
  } catch (error) {
    answers.push({ threw: String(error) });
  }
}
await client.close();
console.log(JSON.stringify({ tools, answers }));
