// A core without models: hands out the built interface as the real one does, answers its commands from a table, and sends events as it is
// told to. For measurements of the interface alone, and for texts that no model would write.
import { createServer } from 'node:http';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { root } from './core.mjs';

const TOKEN = 'fake';
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' };
/** As in crates/server/src/interface.rs. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
  "worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-src 'none'; frame-ancestors 'none'; " +
  "object-src 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html";

export class FakeCore {
  /** Conversations by id: `{ conversation, messages }`. */
  conversations = new Map();
  /** The names of its models. */
  modelNames = [MODEL.name];
  #streams = new Set();
  #server;

  static async start() {
    const core = new FakeCore();
    core.#server = createServer((request, response) => void core.#answer(request, response)).listen(0, '127.0.0.1');
    await once(core.#server, 'listening');
    core.url = new URL(`http://127.0.0.1:${core.#server.address().port}/#token=${TOKEN}`);
    return core;
  }

  /** Adds a chat with these texts, questions and answers in turns; returns its id. */
  addChat(id, title, texts) {
    const conversation = { ...CONVERSATION, id, title, updated_at_ms: 1 + this.conversations.size };
    const messages = texts.map((text, index) => this.message(id, index, text));
    this.conversations.set(id, { conversation, messages });
    return id;
  }

  message(id, index, text, status = 'complete') {
    const isQuestion = index % 2 === 0;
    return {
      id: `${id}-${index}`,
      conversation_id: id,
      parent_id: index === 0 ? null : `${id}-${index - 1}`,
      role: isQuestion ? 'user' : 'assistant',
      status,
      text,
      segments: isQuestion || text === '' ? [] : [{ kind: 'text', text }],
      is_held: false,
      error: null,
      created_at_ms: 1,
      stats: null,
    };
  }

  /** Sends an event to every window. */
  emit(event) {
    for (const stream of this.#streams) stream.write(`${JSON.stringify({ event })}\n`);
  }

  end() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #answer(request, response) {
    if (request.method !== 'POST') return this.#file(request, response);
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const command = JSON.parse(Buffer.concat(chunks));
    response.setHeader('content-type', 'application/x-ndjson');
    if (command.type === 'subscribe') {
      response.write('{"reply":{"type":"done"}}\n');
      this.#streams.add(response);
      response.on('close', () => this.#streams.delete(response));
      return;
    }
    response.end(`${JSON.stringify({ reply: this.#reply(command) })}\n`);
  }

  #reply(command) {
    if (command.type === 'get_conversation') return { type: 'conversation', ...this.conversations.get(command.id) };
    if (command.type !== 'bootstrap') return { type: 'done' };
    const conversations = [...this.conversations.values()].map(({ conversation }) => conversation);
    const models = this.modelNames.map((name) => ({ ...MODEL, name, path: `/models/${name}` }));
    return { ...BOOTSTRAP, conversations: conversations.toReversed(), models };
  }

  async #file(request, response) {
    const { pathname } = new URL(request.url, this.url);
    const name = pathname === '/' ? '/index.html' : pathname;
    response.setHeader('content-security-policy', POLICY);
    try {
      const content = await readFile(join(root, 'ui/dist', name));
      response.setHeader('content-type', TYPES[extname(name)] ?? 'application/octet-stream');
      response.end(content);
    } catch {
      response.statusCode = 404;
      response.end();
    }
  }
}

const CONVERSATION = {
  id: '',
  title: '',
  system_prompt: '',
  created_at_ms: 1,
  updated_at_ms: 1,
  is_streaming: false,
  is_private: false,
  cache: null,
  prefix: null,
};

const MODEL = {
  name: 'owner/model',
  alias: null,
  is_pinned: false,
  path: '/models/owner/model',
  model_type: 'llama',
  bytes: 270e6,
  source: 'hub_cache',
  can_delete: true,
  problem: null,
  facts: null,
  is_being_checked: false,
};

const BOOTSTRAP = {
  type: 'bootstrap',
  models: [MODEL],
  settings: {
    default_model: '',
    temperature: 0.7,
    top_p: 0.95,
    top_k: 0,
    min_p: 0,
    repetition_penalty: 1,
    max_tokens: 1024,
    holds_loops: true,
    seed: null,
    cache_budget_bytes: 20e9,
    cache_ram_budget_bytes: 1e9,
    system_prompt: '',
    context_length: null,
    kv_bits: 'plain',
    alias: '',
    is_pinned: false,
    idle_unload: 'never',
    draft_model: '',
    appearance: 'system',
    hub_endpoint: '',
    download_folder: '',
    hub_proxy: '',
    api_is_on: false,
    api_port: 11435,
  },
  status: {
    engine: { state: 'ready', model: MODEL.name },
    model_fingerprint: 'f',
    models: [{ name: MODEL.name, bytes: 271e6, draft: null }],
    device: 'cpu',
    process_bytes: 512e6,
    process_peak_bytes: 648e6,
    mlx_active_bytes: 271e6,
    mlx_peak_bytes: 402e6,
    mlx_cache_bytes: 0,
    cache_disk_bytes: 0,
    cache_ram_bytes: 0,
  },
  named: [],
  downloads: [],
  model_import: null,
};
