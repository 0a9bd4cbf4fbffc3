// A client on the TypeScript SDK 1.x. It reads {url, token, calls: [{tool, arguments}], falsify} from
// standard input, lists the tools, makes the calls in order and prints {tools, answers}. After the list
// this SDK checks each answer, refusals too, against the tool's output schema; what it then throws is an
// answer {threw}. With falsify each answer is given an error that is a number on its way to the SDK.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { text } from "node:stream/consumers";

const { url, token, calls, falsify } = JSON.parse(await text(process.stdin));
const client = new Client({ name: "sdk-1", version: "1" });
async function falsified(...request) {
  const answer = await fetch(...request);
  const body = (await answer.text()).replace('"structuredContent":{', '"structuredContent":{"error":7,');
  return new Response(answer.status === 202 ? null : body, { status: answer.status, headers: { "Content-Type": answer.headers.get("Content-Type") ?? "" } });
}
await client.connect(
  new StreamableHTTPClientTransport(new URL(url), {
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
    fetch: falsify ? falsified : fetch,
  }),
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
