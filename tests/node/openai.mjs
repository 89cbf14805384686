// OpenAI's own client for Node against a whole server (contract/openai.md section 4): answers, streams, tools,
// logprobs, embeddings, the Responses API, errors as the client's exceptions, and requests that are given up. The
// mocks behind it are those of tests/python/openai_client.py. Runs every check and ends with status 1 and what failed
// first.

import assert from "node:assert";
import { createRequire } from "node:module";
import path from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: { url: { type: "string" }, key: { type: "string" }, modules: { type: "string" } },
});
const entry = createRequire(path.join(options.modules, "any.js")).resolve("openai");
const OpenAI = createRequire(entry)(entry);

const PATIENCE_MS = 300_000;
const client = new OpenAI({
  baseURL: `http://${options.url}/v1`,
  apiKey: options.key,
  maxRetries: 0,
  timeout: PATIENCE_MS,
});

const QUESTION = "What is the weather in Dallas, Texas?";
const TOOLS = [
  {
    type: "function",
    function: {
      name: "get_current_weather",
      description: "The weather of a place",
      parameters: { type: "object", properties: { city: { type: "string" }, state: { type: "string" } } },
    },
  },
];

const user = (content) => [{ role: "user", content }];
const complete = (prompt, more = {}) => client.completions.create({ model: "llm", prompt, ...more });
const chat = (content, more = {}) => client.chat.completions.create({ model: "llm", messages: user(content), ...more });

async function all(stream) {
  const events = [];
  for await (const event of await stream) events.push(event);
  return events;
}

async function refused(work, Kind) {
  try {
    await work;
  } catch (error) {
    assert.ok(error instanceof Kind, `expected ${Kind.name}, got ${error}`);
    return error;
  }
  assert.fail(`expected ${Kind.name}`);
}

const stateOf = async (key) => (await complete(`<<state ${key}>>`)).choices[0].text;

async function becomes(key, state) {
  const until = Date.now() + PATIENCE_MS;
  for (;;) {
    const said = await stateOf(key);
    if (said === state) return;
    assert.ok(Date.now() < until, `request ${key} is ${said}, not ${state}`);
    await pause(10);
  }
}

async function checkModels() {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes("llm") && names.includes("embed"), names);
  assert.strictEqual((await client.models.retrieve("llm")).owned_by, "Triton Inference Server");
  const error = await refused(client.models.retrieve("absent"), OpenAI.NotFoundError);
  assert.ok(error.message.includes("Unknown model: absent"), error.message);
}

async function checkAnswers() {
  const answer = await chat("<<reply h\u00e9llo>>");
  assert.deepStrictEqual([answer.object, answer.choices[0].message.content], ["chat.completion", "h\u00e9llo"]);
  assert.strictEqual(answer.choices[0].finish_reason, "stop");
  const { prompt_tokens: prompt, total_tokens: total } = answer.usage;
  assert.ok(prompt > 0 && total === prompt + 1, answer.usage);
  const text = await complete("one two three", { seed: 1 });
  assert.deepStrictEqual([text.object, text.usage.completion_tokens], ["text_completion", 16]);
  const echoed = await complete("one two three", { echo: true });
  assert.ok(echoed.choices[0].text.startsWith("one two three"));
}

async function checkStreams() {
  const greedy = { temperature: 0, max_tokens: 20 };
  const whole = await chat("tell me", greedy);
  const chunks = await all(chat("tell me", { ...greedy, stream: true, stream_options: { include_usage: true } }));
  const usage = chunks.pop();
  assert.deepStrictEqual([usage.choices, usage.usage], [[], whole.usage]);
  const said = chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join("");
  assert.strictEqual(said, whole.choices[0].message.content);
  const reasons = chunks.map((chunk) => chunk.choices[0].finish_reason).filter((reason) => reason !== null);
  assert.deepStrictEqual(reasons, ["length"]);
  const texts = await all(complete("tell me", { ...greedy, stream: true }));
  assert.strictEqual(
    texts.map((chunk) => chunk.choices[0].text).join(""),
    (await complete("tell me", greedy)).choices[0].text,
  );
  // The client's own accumulation.
  const helper = client.chat.completions.stream({ model: "llm", messages: user('<<pieces ["a","b"]>>') });
  assert.strictEqual(await helper.finalContent(), "ab");
}

async function checkTools() {
  const asked = { tools: TOOLS, max_tokens: 128 };
  for (const more of [{}, { tool_choice: "auto" }]) {
    const answer = (await chat(QUESTION, { ...asked, ...more })).choices[0];
    assert.strictEqual(answer.finish_reason, "tool_calls");
    const call = answer.message.tool_calls[0];
    assert.strictEqual(JSON.parse(call.function.arguments).city, "Dallas");
    const helper = client.chat.completions.stream({ model: "llm", messages: user(QUESTION), ...asked, ...more });
    const streamed = (await helper.finalMessage()).tool_calls[0];
    assert.deepStrictEqual(streamed.function, { name: call.function.name, arguments: call.function.arguments });
    assert.ok(streamed.id.length >= 9);
  }
  const forced = (await chat("x", { ...asked, tool_choice: "required" })).choices[0];
  assert.deepStrictEqual(JSON.parse(forced.message.tool_calls[0].function.arguments), { city: "Dallas", state: "TX" });
  const named = { type: "function", function: { name: "absent" } };
  const error = await refused(chat("x", { ...asked, tool_choice: named }), OpenAI.BadRequestError);
  assert.ok(error.message.includes("Tool 'absent' has not been passed in `tools`."), error.message);
}

async function checkLogprobs() {
  const asked = { logprobs: true, top_logprobs: 2, temperature: 0, max_tokens: 5 };
  const { content } = (await chat("x", asked)).choices[0].logprobs;
  assert.deepStrictEqual([content.length, content[0].top_logprobs.length], [5, 2]);
  const chunks = await all(chat("x", { ...asked, stream: true }));
  assert.deepStrictEqual(chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []), content);
}

async function checkEmbeddings() {
  const input = "<<vector [0.5, -0.25]>>";
  // The client asks for base64 and decodes it.
  for (const more of [{}, { encoding_format: "float" }]) {
    const answer = await client.embeddings.create({ model: "embed", input, ...more });
    assert.deepStrictEqual(Array.from(answer.data[0].embedding), [0.5, -0.25]);
  }
  const several = await client.embeddings.create({ model: "embed", input: ["a", "b"] });
  assert.deepStrictEqual(several.data.map((one) => one.index), [0, 1]);
}

async function checkResponses() {
  const answer = await client.responses.create({ model: "llm", input: "<<reply hello>>" });
  assert.deepStrictEqual([answer.status, answer.output_text], ["completed", "hello"]);
  const events = await all(client.responses.create({ model: "llm", input: '<<pieces ["a","b"]>>', stream: true }));
  const deltas = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
  assert.deepStrictEqual([deltas.join(""), events.at(-1).type], ["ab", "response.completed"]);
}

async function checkErrors() {
  await refused(chat("x", { temperature: 3 }), OpenAI.UnprocessableEntityError);
  const unknown = await refused(client.completions.create({ model: "absent", prompt: "x" }), OpenAI.BadRequestError);
  assert.strictEqual(unknown.code, "model_not_found");
  await refused(complete("<<fail 1>>"), OpenAI.InternalServerError);
  const stranger = client.withOptions({ apiKey: "wrong" });
  await refused(stranger.models.retrieve("llm"), OpenAI.AuthenticationError);
  const failing = await refused(all(chat('<<fail 3>><<pieces ["a","b","c"]>>', { stream: true })), OpenAI.APIError);
  assert.ok(failing.message.includes("the mock fails at response 3"), failing.message);
}

async function checkLeaving() {
  const script = (key) => `<<name ${key}>><<hang>><<pieces ["a","b"]>>`;
  // A client that is slow gives up before the server has its request: it then waits longer.
  let late;
  for (const timeout of [500, 5_000, 50_000]) {
    late = `node-late-${timeout}`;
    const asked = client.completions.create({ model: "llm", prompt: script(late) }, { timeout });
    await refused(asked, OpenAI.APIConnectionTimeoutError);
    if ((await stateOf(late)) !== "unknown") break;
  }
  await becomes(late, "cancelled");
  const stream = await chat(script("node-left"), { stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content === "a") break;
  }
  await becomes("node-left", "cancelled");
}

const checks = [
  checkModels,
  checkAnswers,
  checkStreams,
  checkTools,
  checkLogprobs,
  checkEmbeddings,
  checkResponses,
  checkErrors,
  checkLeaving,
];
try {
  for (const check of checks) await check();
  console.log("ok");
} catch (error) {
  console.log(error);
  process.exit(1);
}
