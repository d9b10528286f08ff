// A core without models: hands out the built interface as the real one does, answers its commands from a table, and sends events as it is
// told to. For measurements of the interface alone, and for texts that no model would write. What it says has the fields that the
// interface's own tests use, which svelte-check compares with those of the real core.
import { createServer } from 'node:http';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import typescript from '../../ui/node_modules/typescript/lib/typescript.js';
import { root } from './core.mjs';

/** What the interface's own tests make up. */
export const fakes = {
  ...(await importTypeScript('ui/src/testing/fake.ts')),
  ...(await importTypeScript('ui/src/testing/jobs.ts')),
};
const { bootstrap, conversation, message, model } = fakes;

const TOKEN = 'fake';
/** When the first chat was written; each other one is newer. */
const START_MS = Date.now() - 60_000;
const TYPES = {
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.mjs': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
};
/** As in crates/server/src/interface.rs. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
  "worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-src 'none'; frame-ancestors 'none'; " +
  "object-src 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html cairn-documents";

export class FakeCore {
  /** Conversations by id: `{ conversation, messages }`. */
  conversations = new Map();
  /** What the next messages are sent with, by conversation. */
  drafts = new Map();
  /** The text of every document. */
  documentText = '';
  /** The names of its models. */
  modelNames = ['owner/model'];
  /** What the first reply has besides. */
  bootstrap = {};
  /** Replies to other commands, by type: a reply, or a function of the command. */
  replies = {};
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
    const messages = texts.map((text, index) => this.message(id, index, text));
    const updated_at_ms = START_MS + this.conversations.size;
    this.conversations.set(id, { conversation: conversation(id, { title, updated_at_ms }), messages });
    return id;
  }

  message(id, index, text, status = 'complete') {
    return message(`${id}-${index}`, {
      conversation_id: id,
      parent_id: index === 0 ? null : `${id}-${index - 1}`,
      role: index % 2 === 0 ? 'user' : 'assistant',
      status,
      text,
    });
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
    const given = this.replies[command.type];
    if (given) return typeof given === 'function' ? given(command) : given;
    if (command.type === 'get_documents') {
      const { of } = command;
      const known = this.drafts.get(of.id) ?? { documents: [], reading: { type: 'unread' } };
      return { type: 'documents', attached: { of, beginning: [], ...known } };
    }
    if (command.type === 'get_document') {
      const known = [...this.drafts.values()].flatMap(({ documents }) => documents);
      const document = known.find(({ id }) => id === command.document_id) ?? known[0];
      return { type: 'document_text', document, text: this.documentText };
    }
    if (command.type !== 'bootstrap') return { type: 'done' };
    const conversations = [...this.conversations.values()].map(({ conversation }) => conversation);
    const models = this.modelNames.map((name) => model(name));
    return bootstrap({ conversations: conversations.toReversed(), models, ...this.bootstrap });
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

/** The exports of a file in TypeScript that imports types only, which Node cannot read as it is. */
async function importTypeScript(path) {
  const source = await readFile(join(root, path), 'utf8');
  const options = { module: typescript.ModuleKind.ESNext, target: typescript.ScriptTarget.ES2023 };
  const { outputText } = typescript.transpileModule(source, { compilerOptions: options });
  return import(`data:text/javascript,${encodeURIComponent(outputText)}`);
}
