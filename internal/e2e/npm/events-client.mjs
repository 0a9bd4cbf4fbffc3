// A client on the AI SDK that subscribes to MCP Events and receives them itself. It reads {url, token,
// peer, legacy} from standard input and prints one JSON object a line: {listed}, {subscribed}, then for
// each event {event, signature, message} after it has read and acknowledged the message. A line on
// standard input makes it refresh; the end of standard input makes it unsubscribe
// and print {unsubscribed}. With legacy it speaks protocol 2025-11-25.
import { createMCPClient, experimental_createMCPEventWebhook as createWebhook } from "@ai-sdk/mcp";
import { createServer } from "node:http";
import { createInterface } from "node:readline";

const say = (line) => console.log(JSON.stringify(line));
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const { url, token, peer, legacy } = JSON.parse((await lines.next()).value);

const records = new Map();
const store = {
  get: async (key) => records.get(key),
  getById: async (id) => [...records.values()].find((r) => r.id === id),
  set: async (r) => void records.set(r.key, r),
  update: async (key, patch) => void records.set(key, { ...records.get(key), ...patch }),
  delete: async (key) => void records.delete(key),
};

let client;
const call = async (name, args) => {
  const answer = await client.callTool({ name, arguments: args });
  if (answer.isError) throw new Error(JSON.stringify(answer.structuredContent));
  return answer.structuredContent ?? JSON.parse(answer.content[0].text);
};

let signatures = 0;
const webhook = createWebhook({
  store,
  onEvent: async ({ subscription, event }) => {
    const messageId = event.data.messageId;
    const { message } = await call("get_peer_message", { messageId, peerId: peer });
    await call("ack_peer_message", { messageId, peerId: peer });
    say({ event, subscription: subscription.id, signatures, message });
  },
  onError: (error) => say({ failed: String(error) }),
});
const server = createServer(async (req, res) => {
  const body = [];
  for await (const chunk of req) body.push(chunk);
  signatures = (req.headers["webhook-signature"] ?? "").split(" ").length;
  const answer = await webhook(new Request(`http://${req.headers.host}${req.url}`, { method: req.method, headers: req.headers, body: Buffer.concat(body) }));
  res.writeHead(answer.status, Object.fromEntries(answer.headers)).end(Buffer.from(await answer.arrayBuffer()));
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));

client = await createMCPClient({
  transport: { type: "http", url, headers: { Authorization: `Bearer ${token}` } },
  experimental_events: { store },
  protocolVersionDiscovery: !legacy,
});
const callback = `http://127.0.0.1:${server.address().port}/hook`;
const subscribe = () =>
  client.experimental_events.subscribe({ name: "peer.message", arguments: { peerId: peer }, delivery: { mode: "webhook", url: callback, allowInsecureLocalhost: true } });
say({ listed: await client.experimental_events.list() });
const subscribed = await subscribe();
say({ subscribed });
for await (const line of lines) {
  say({ refreshed: await client.experimental_events.refresh({ id: subscribed.id }), line });
}
await client.experimental_events.unsubscribe({ id: subscribed.id });
say({ unsubscribed: true, left: records.size });
await client.close();
server.close();
server.closeAllConnections();
