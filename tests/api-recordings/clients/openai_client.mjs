// OpenAI's client for JavaScript against Cairn: what it parses and what it throws.
//
// CAIRN_URL and CAIRN_KEY say where. Each call has a name, by which `make interop` records it.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const baseURL = `${process.env.CAIRN_URL}/v1`;
const client = new OpenAI({ baseURL, apiKey: process.env.CAIRN_KEY, maxRetries: 0 });

const [scripted, random, small] = ["scripted", "tiny-tools", "tiny-chat"];
const messages = [{ role: "user", content: "Where is it?" }];
const noEnd = { 256: -100, 258: -100 };
const fewBlanks = { 9: -100, 10: -100, 13: -100, 32: -100 };
const parameters = { type: "object", properties: { at: { type: "string" } } };
const tools = ["look", "go"].map((name) => ({
  type: "function",
  function: { name, parameters },
}));
const made = [
  ["look", '{"at": "é"}'],
  ["go", "{}"],
];
const named = (name, more = {}) => ({ ...more, headers: { "x-case": name } });

async function models() {
  const names = [];
  for await (const model of client.models.list(named("models are listed"))) names.push(model.id);
  assert.ok(names.includes(small) && names.includes(random), names.join());
}

async function chats() {
  const asked = { model: scripted, messages, tools, max_completion_tokens: 400 };
  const answer = await client.chat.completions.create(
    asked,
    named("a chat thinks, speaks and calls"),
  );
  const { message, finish_reason } = answer.choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.content, "I look.");
  const calls = message.tool_calls.map((call) => [call.function.name, call.function.arguments]);
  assert.deepEqual(calls, made);

  const stream = client.chat.completions.stream(
    { ...asked, stream_options: { include_usage: true } },
    named("a chat is streamed with calls"),
  );
  let text = "";
  stream.on("content", (more) => (text += more));
  const final = await stream.finalChatCompletion();
  assert.equal(text, "I look.");
  assert.equal(final.choices[0].message.tool_calls.length, 2);
  assert.ok(final.usage.completion_tokens > 0);
}

async function schemas() {
  const Stone = z.object({ color: z.enum(["red", "blue"]), is_flat: z.boolean() });
  const answer = await client.chat.completions.parse(
    {
      model: random,
      messages,
      seed: 3,
      max_completion_tokens: 400,
      logit_bias: fewBlanks,
      response_format: zodResponseFormat(Stone, "stone"),
    },
    named("a chat answers with a type"),
  );
  Stone.parse(answer.choices[0].message.parsed);
}

async function responses() {
  const asked = {
    model: scripted,
    input: "Where is it?",
    max_output_tokens: 400,
    tools: tools.map((tool) => ({ type: "function", strict: false, ...tool.function })),
  };
  const response = await client.responses.create(
    asked,
    named("a response thinks, speaks and calls"),
  );
  assert.equal(response.output_text, "I look.");
  const kinds = response.output.map((item) => item.type);
  assert.deepEqual(kinds, ["reasoning", "message", "function_call", "function_call"]);
  assert.deepEqual(
    response.tools.map((tool) => tool.name),
    ["look", "go"],
  );

  const stream = client.responses.stream(asked, named("a response is streamed"));
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  const final = await stream.finalResponse();
  assert.equal(text, "I look.");
  assert.equal(final.output.length, 4);
}

async function texts() {
  const asked = {
    model: random,
    prompt: "A cairn is",
    max_tokens: 5,
    temperature: 0,
    logit_bias: noEnd,
  };
  const whole = await client.completions.create(asked, named("a text is continued"));
  const stream = await client.completions.create(
    { ...asked, stream: true },
    named("a text is continued in a stream"),
  );
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0].text;
  assert.equal(text, whole.choices[0].text);
}

async function errors() {
  const ask = (more, name) =>
    client.chat.completions.create({ model: small, messages, ...more }, named(name));
  const fails = (made, kind, fields) =>
    assert.rejects(made, (error) => {
      assert.ok(error instanceof kind, `${error}`);
      for (const [name, value] of Object.entries(fields)) assert.equal(error[name], value, name);
      return true;
    });
  await fails(ask({ model: "no/such" }, "an unknown model"), OpenAI.NotFoundError, {
    code: "model_not_found",
  });
  await fails(
    client.withOptions({ apiKey: "wrong" }).models.list(named("a wrong key")),
    OpenAI.AuthenticationError,
    { code: "invalid_api_key" },
  );
  const long = [{ role: "user", content: "stone ".repeat(800) }];
  await fails(ask({ messages: long }, "a prompt that is too long"), OpenAI.BadRequestError, {
    code: "context_length_exceeded",
  });
  await fails(ask({ temperature: -1 }, "a temperature below 0"), OpenAI.BadRequestError, {
    param: "temperature",
  });
}

const endless = (options) =>
  client.chat.completions.create(
    { model: random, messages, stream: true, max_tokens: 1_000_000, logit_bias: noEnd },
    options,
  );

async function cancelled() {
  // More than may run at once: if one were still running, a later one would be told to wait.
  for (let number = 0; number < 80; number++) {
    const stream = await endless(number === 0 ? named("a client goes away") : {});
    let seen = 0;
    // Leaving the loop aborts the request.
    for await (const _ of stream) if (++seen === 3) break;
  }
}

async function tooMany() {
  const running = await Promise.all(Array.from({ length: 64 }, () => endless({})));
  await assert.rejects(endless(named("too many at once")), OpenAI.RateLimitError);
  for (const stream of running) stream.controller.abort();
  const answer = await client.chat.completions.create(
    { model: scripted, messages, max_tokens: 400 },
    named("room again", { maxRetries: 8 }),
  );
  assert.ok(answer.choices[0].message.content.startsWith("I look."));
}

async function parallel() {
  const ask = () =>
    client.chat.completions.create(
      { model: random, messages, max_tokens: 8, logit_bias: noEnd },
      named("one of many at once"),
    );
  const answers = await Promise.all(Array.from({ length: 32 }, ask));
  assert.ok(answers.every((answer) => answer.usage.completion_tokens === 8));
}

for (const check of [
  models,
  chats,
  schemas,
  responses,
  texts,
  errors,
  cancelled,
  tooMany,
  parallel,
]) {
  await check();
}
console.log("openai for JavaScript: every answer was as its types say");
