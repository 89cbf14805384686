// A client in Node: grpc-js, an HTTP/2 stack of its own, with the messages of proto/; fetch and http for the HTTP port.
// Runs every check and ends with status 1 and what failed first.
"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const { parseArgs } = require("node:util");

const { values: options } = parseArgs({
  options: { grpc: { type: "string" }, http: { type: "string" }, proto: { type: "string" }, modules: { type: "string" } },
});
const grpc = require(path.join(options.modules, "@grpc/grpc-js"));
const loader = require(path.join(options.modules, "@grpc/proto-loader"));

const PATIENCE_MS = 300_000;

const definitions = loader.loadSync(["inference.proto", "health.proto"], {
  includeDirs: [options.proto],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
});
const packages = grpc.loadPackageDefinition(definitions);

function connect(more = {}) {
  const Client = packages.inference.GRPCInferenceService;
  return new Client(options.grpc, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    ...more,
  });
}

/** One unary call; resolves with the answer, or rejects with its status. */
function call(client, method, request, { metadata = new grpc.Metadata(), deadline = Date.now() + PATIENCE_MS } = {}) {
  return new Promise((resolve, reject) => {
    client[method](request, metadata, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

async function statusOf(work) {
  try {
    await work;
  } catch (error) {
    return error;
  }
  assert.fail("expected an error");
}

function numbers(model, id, ...values) {
  const raw = Buffer.from(Int32Array.from(values).buffer);
  const inputs = [{ name: "INPUT0", datatype: "INT32", shape: [values.length] }];
  return { model_name: model, id, inputs, raw_input_contents: [raw] };
}

async function checkHealthAndMetadata(client) {
  const health = new packages.grpc.health.v1.Health(options.grpc, grpc.credentials.createInsecure());
  assert.deepStrictEqual(await call(health, "Check", { service: "" }), { status: "SERVING" });
  health.close();
  assert.deepStrictEqual(await call(client, "ServerLive", {}), { live: true });
  assert.deepStrictEqual(await call(client, "ServerReady", {}), { ready: true });
  assert.deepStrictEqual(await call(client, "ModelReady", { name: "plain" }), { ready: true });
  const server = await call(client, "ServerMetadata", {});
  assert.ok(server.extensions.includes("binary_tensor_data"), server.extensions);
  const model = await call(client, "ModelMetadata", { name: "plain" });
  const tensor = (name) => [{ name, datatype: "INT32", shape: [-1] }];
  const expected = { name: "plain", versions: ["1"], platform: "identity", inputs: tensor("INPUT0") };
  assert.deepStrictEqual(model, { ...expected, outputs: tensor("OUTPUT0") });
  const { config } = await call(client, "ModelConfig", { name: "plain" });
  assert.deepStrictEqual([config.name, config.backend, config.input[0].data_type], ["plain", "identity", "TYPE_INT32"]);
  const { models } = await call(client, "RepositoryIndex", {});
  assert.ok(models.some((row) => row.name === "plain" && row.state === "READY"), models);
}

async function checkUnary(client) {
  const metadata = new grpc.Metadata();
  metadata.add("x-mine", "a");
  metadata.add("x-mine", "b");
  metadata.add("x-bytes-bin", Buffer.from([0, 255, 7]));
  metadata.add("x-long", "l".repeat(5000));
  const all = [];
  for (let number = 0; number < 300; number++) {
    const request = numbers("plain", String(number), number, -number);
    request.parameters = { mine: { string_param: "x" }, share: { double_param: 0.5 } };
    all.push(
      call(client, "ModelInfer", request, { metadata }).then((answer) => {
        assert.strictEqual(answer.id, request.id);
        assert.deepStrictEqual(answer.raw_output_contents, request.raw_input_contents);
        assert.deepStrictEqual(answer.outputs[0].shape, [2]);
        assert.strictEqual(answer.parameters.param1.int64_param, 42);
      }),
    );
  }
  await Promise.all(all);
  // The same as typed contents.
  const inputs = [{ name: "INPUT0", datatype: "INT32", shape: [3], contents: { int_contents: [1, -2, 3] } }];
  const answer = await call(client, "ModelInfer", { model_name: "plain", inputs });
  assert.deepStrictEqual(answer.raw_output_contents, [Buffer.from(Int32Array.from([1, -2, 3]).buffer)]);
}

async function checkLarge(client) {
  for (const size of [1, 16_384, 65_536, 1 << 20, 9_000_001]) {
    const data = Buffer.alloc(size);
    for (let at = 0; at < size; at++) data[at] = at ^ (at >> 9);
    const inputs = [{ name: "INPUT0", datatype: "UINT8", shape: [size] }];
    const answer = await call(client, "ModelInfer", { model_name: "large", inputs, raw_input_contents: [data] });
    assert.ok(answer.raw_output_contents[0].equals(data), `${size} bytes changed on their way`);
  }
}

async function checkErrors(client) {
  for (const name of ["absent", "100 % Gr\u00fc\u00dfe", "line\nbreak", "%41"]) {
    const error = await statusOf(call(client, "ModelInfer", numbers(name, "", 1)));
    assert.strictEqual(error.code, grpc.status.NOT_FOUND);
    assert.strictEqual(error.details, `Request for unknown model: '${name}' is not found`);
  }
}

async function checkStream(client) {
  const stream = client.ModelStreamInfer({ deadline: Date.now() + PATIENCE_MS });
  const count = 300;
  for (let number = 0; number < count; number++) {
    stream.write(numbers(number % 10 === 9 ? "absent" : "plain", String(number), number));
  }
  stream.end();
  let number = 0;
  for await (const { error_message: error, infer_response: response } of stream) {
    assert.strictEqual(response.id, String(number));
    if (number % 10 === 9) {
      assert.strictEqual(error, "Request for unknown model: 'absent' is not found");
    } else {
      assert.strictEqual(error, "");
      assert.strictEqual(response.parameters.triton_final_response.bool_param, true);
      assert.strictEqual(response.raw_output_contents[0].readInt32LE(), number);
    }
    number++;
  }
  assert.strictEqual(number, count);
}

async function checkDeadlineAndCancel(client) {
  const patient = call(client, "ModelInfer", numbers("slow", "patient", 1));
  const hasty = await statusOf(
    call(client, "ModelInfer", numbers("slow", "hasty", 2), { deadline: Date.now() + 100 }),
  );
  assert.strictEqual(hasty.code, grpc.status.DEADLINE_EXCEEDED);
  const cancelled = new Promise((resolve) => {
    const unary = client.ModelInfer(numbers("slow", "given up", 3), (error) => resolve(error));
    setImmediate(() => unary.cancel());
  });
  assert.strictEqual((await cancelled).code, grpc.status.CANCELLED);
  const stream = client.ModelStreamInfer();
  stream.write(numbers("slow", "given up too", 4));
  const ended = new Promise((resolve) => stream.on("error", resolve));
  stream.on("data", () => assert.fail("an answer on a cancelled stream"));
  setImmediate(() => stream.cancel());
  assert.strictEqual((await ended).code, grpc.status.CANCELLED);
  assert.strictEqual((await patient).id, "patient");
  assert.strictEqual((await call(client, "ModelInfer", numbers("plain", "after", 1))).id, "after");
}

/** Sends with node:http; `chunked` lets it find out the length by itself. */
function send(agent, route, headers, pieces) {
  return new Promise((resolve, reject) => {
    const target = { agent, method: "POST", path: route, headers, timeout: PATIENCE_MS };
    const request = http.request(`http://${options.http}`, target, (response) => {
      const body = [];
      response.on("data", (piece) => body.push(piece));
      response.on("end", () => {
        const { statusCode: status, headers: answered } = response;
        resolve({ status, headers: answered, body: Buffer.concat(body), reused: request.reusedSocket });
      });
    });
    request.on("error", reject);
    const go = () => {
      for (const piece of pieces) request.write(piece);
      request.end();
    };
    // With Expect the body waits for the interim answer.
    if (headers.Expect) request.on("continue", go);
    else go();
  });
}

async function checkHttp() {
  const url = `http://${options.http}/v2/models/plain/infer`;
  const body = JSON.stringify({ inputs: [{ name: "INPUT0", datatype: "INT32", shape: [2], data: [5, 6] }] });
  for (let number = 0; number < 20; number++) {
    const answer = await fetch(url, { method: "POST", body });
    assert.strictEqual(answer.status, 200);
    assert.strictEqual(answer.headers.get("content-type"), "application/json");
    assert.deepStrictEqual((await answer.json()).outputs[0].data, [5, 6]);
  }
  const stream = new ReadableStream({
    start(controller) {
      for (const letter of body) controller.enqueue(new TextEncoder().encode(letter));
      controller.close();
    },
  });
  const streamed = await fetch(url, { method: "POST", body: stream, duplex: "half" });
  assert.deepStrictEqual((await streamed.json()).outputs[0].data, [5, 6], "an upload in chunks of one byte");
  const absent = await fetch(url.replace("plain", "absent"), { method: "POST", body });
  assert.strictEqual(absent.status, 404);
  assert.deepStrictEqual(await absent.json(), { error: "Request for unknown model: 'absent' is not found" });

  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const tail = Buffer.alloc(8 << 20);
  for (let at = 0; at < tail.length; at++) tail[at] = at ^ (at >> 11);
  const head = JSON.stringify({
    inputs: [{ name: "INPUT0", datatype: "UINT8", shape: [tail.length], parameters: { binary_data_size: tail.length } }],
    parameters: { binary_data_output: true },
  });
  const pieces = [head];
  for (let at = 0; at < tail.length; at += 100_003) pieces.push(tail.subarray(at, at + 100_003));
  const lengths = { "Inference-Header-Content-Length": head.length };
  const known = { ...lengths, "Content-Length": head.length + tail.length };
  for (const [number, headers] of [lengths, known, { ...known, Expect: "100-continue" }].entries()) {
    const answer = await send(agent, "/v2/models/large/infer", headers, pieces);
    assert.strictEqual(answer.status, 200, answer.body.toString());
    assert.strictEqual(answer.reused, number > 0, "the connection is kept");
    const json = Number(answer.headers["inference-header-content-length"]);
    assert.ok(answer.body.subarray(json).equals(tail), "8 MiB changed on their way");
  }
  agent.destroy();
}

async function main() {
  assert.ok(fs.existsSync(path.join(options.proto, "inference.proto")));
  const client = connect();
  await checkHealthAndMetadata(client);
  await checkUnary(client);
  await checkLarge(client);
  await checkErrors(client);
  await checkStream(client);
  await checkDeadlineAndCancel(client);
  client.close();
  await checkHttp();
  console.log("ok");
}

main().catch((error) => {
  console.log(error);
  process.exit(1);
});
