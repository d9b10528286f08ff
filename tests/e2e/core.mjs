// A temporary data folder, and the cores (`cairn serve --ui`) that run on it one after another.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { LIMIT_MS } from './until.mjs';

export const root = fileURLToPath(new URL('../..', import.meta.url));
export const target = process.env.CARGO_TARGET_DIR ?? join(root, 'target');
const tinyModels = join(root, 'target/tiny-models/llama');
/** The starter model's GGUF file, which `make starter` fetches. */
export const starterFile = join(root, 'target/starter/SmolLM2-135M-Instruct.Q4_1.gguf');

/** A limit for saved context; on a nearly full disk the app's own is none. */
export const CACHE_BYTES = 2 ** 30;

/** The path of a program of this workspace, as built for tests. */
export function program(name) {
  return join(target, 'debug', name);
}

/** Runs a program to its end. */
export async function run(command, args, env, cwd) {
  const child = spawn(command, args, { env, cwd, stdio: ['ignore', 'pipe', 'pipe'] });
  const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')]);
  return { code, stdout, stderr };
}

/** A data folder, and beside it an empty cache of downloaded models. When the test ends both are removed, and their cores are ended. */
export class Home {
  #cores = [];

  constructor(folder, cairn = program('cairn')) {
    this.folder = folder;
    this.cairn = cairn;
    this.env = {
      ...process.env,
      CAIRN_HOME: join(folder, 'home'),
      HF_HUB_CACHE: join(folder, 'hub'),
      // No flow sees the models and the token of whoever runs it, or asks the real hub or keychain.
      HOME: join(folder, 'user'),
      HF_HOME: join(folder, 'huggingface'),
      HF_HUB_OFFLINE: '1',
      DBUS_SESSION_BUS_ADDRESS: 'disabled:',
    };
  }

  /** Lets its cores ask this hub. */
  useHub(endpoint) {
    this.env.HF_ENDPOINT = endpoint;
    delete this.env.HF_HUB_OFFLINE;
  }

  static async make(t, models = ['tiny-chat']) {
    const home = new Home(await mkdtemp(join(tmpdir(), 'cairn-e2e-')));
    await mkdir(home.env.HOME);
    t.after(() => home.remove());
    for (const model of models) await home.addTinyModel(model);
    return home;
  }

  modelFolder(name) {
    return join(this.env.CAIRN_HOME, 'models', name);
  }

  /** Adds one of the tiny random models that `cargo xtask tiny-models` writes, with a context that no flow fills; `change` is of its config. */
  async addTinyModel(name, from = name, change = {}) {
    const folder = this.modelFolder(name);
    await cp(join(tinyModels, from), folder, { recursive: true });
    const file = join(folder, 'config.json');
    const config = JSON.parse(await readFile(file, 'utf8'));
    await writeFile(file, JSON.stringify({ ...config, max_position_embeddings: 2_000_000, ...change }));
  }

  /**
   * Adds a model without weights: to whatever is asked it gives this answer, or with `isEndless` its letters in some order without
   * end. See `cairn_lm::models::scripted`: its next token depends on the sum of all before it, and the prompt is one token.
   */
  async addScripted(name, answer, { isEndless = false } = {}) {
    await this.addTinyModel(name, 'tiny-chat');
    const bytes = [...Buffer.from(answer)];
    const end = 258;
    const first = 'Q'.charCodeAt(0);
    const script = isEndless ? bytes : Array(first + bytes.reduce((sum, byte) => sum + byte, 0) + end + 1).fill(end);
    let sum = first;
    for (const byte of isEndless ? [] : bytes) {
      script[sum] = byte;
      sum += byte;
    }
    const config = { model_type: 'scripted', vocab_size: 259, script, max_position_embeddings: 2_000_000 };
    await writeFile(join(this.modelFolder(name), 'config.json'), JSON.stringify(config));
    await this.setTemplate(name, 'Q{# <think> <tool_call> #}');
  }

  /** Gives a model this chat template. */
  async setTemplate(name, template) {
    const file = join(this.modelFolder(name), 'tokenizer_config.json');
    const config = JSON.parse(await readFile(file, 'utf8'));
    await writeFile(file, JSON.stringify({ ...config, chat_template: template }));
  }

  /** Whether a text is in the database, as a core that starts after a crash would find it. */
  async hasStored(text) {
    const paths = ['cairn.db', 'cairn.db-wal'].map((name) => join(this.env.CAIRN_HOME, name));
    const files = await Promise.all(paths.map((path) => readFile(path).catch(() => '')));
    return files.some((content) => content.includes(text));
  }

  /** Adds a model folder that has only a config. */
  async addBroken(name) {
    await mkdir(this.modelFolder(name), { recursive: true });
    await cp(join(tinyModels, 'tiny-chat/config.json'), join(this.modelFolder(name), 'config.json'));
  }

  /** Imports the real starter model. */
  async addStarter() {
    const args = ['models', 'import', starterFile, '--name', 'SmolLM2-135M-Instruct'];
    const { code, stderr } = await run(this.cairn, args, this.env);
    assert.equal(code, 0, `the starter model is fetched by \`make starter\`: ${stderr}`);
  }

  /** Starts a core; with `{ port, token }` of an earlier one, at the same address. */
  async start({ port = 0, token } = {}) {
    const args = ['serve', '--ui', '--port', String(port)];
    if (token) {
      const file = join(this.folder, 'token');
      await writeFile(file, token);
      args.push('--token-file', file);
    }
    const core = new Core(spawn(this.cairn, args, { env: this.env, stdio: ['ignore', 'pipe', 'pipe'] }));
    this.#cores.push(core);
    await core.opened();
    return core;
  }

  async remove() {
    await Promise.all(this.#cores.map((core) => core.end('SIGKILL')));
    await rm(this.folder, { recursive: true, force: true });
  }
}

/** A running `cairn serve --ui`. */
export class Core {
  #child;
  #exited;
  wasEnded = false;
  #stderr;

  constructor(child) {
    this.#child = child;
    this.#exited = once(child, 'exit');
    this.#stderr = text(child.stderr);
  }

  /** Waits for the address, which is the first line that a core prints. */
  async opened() {
    const lines = createInterface({ input: this.#child.stdout });
    const late = AbortSignal.timeout(LIMIT_MS);
    const line = await Promise.race([once(lines, 'line', { signal: late }), this.#exited.then(() => null)]);
    if (!line) throw new Error(`cairn serve ended before it printed an address: ${await this.#stderr}`);
    this.url = new URL(line[0]);
    this.port = Number(this.url.port);
    this.token = new URLSearchParams(this.url.hash.slice(1)).get('token');
  }

  /** Sends a command directly to the core. */
  async call(command) {
    const response = await fetch(new URL('/api/call', this.url), {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${this.token}` },
      body: JSON.stringify(command),
    });
    const frame = await response.json();
    assert.ok(frame.reply, `${command.type} failed: ${JSON.stringify(frame)}`);
    return frame.reply;
  }

  /** Changes some of the settings of all chats. */
  async set(change) {
    for (const [key, value] of Object.entries(change)) {
      await this.call({ type: 'set_setting', scope: { type: 'app' }, key, value });
    }
  }

  /** All conversations, with their messages. */
  async conversations() {
    const { conversations } = await this.call({ type: 'bootstrap' });
    return Promise.all(conversations.map(({ id }) => this.call({ type: 'get_conversation', id })));
  }

  /** What it wrote on stderr, once it has ended. */
  get stderr() {
    return this.#stderr;
  }

  /** Ends the core by a signal and returns its exit code, null if the signal killed it. */
  async end(signal) {
    this.wasEnded = true;
    this.#child.kill(signal);
    const [code] = await this.#exited;
    return code;
  }
}
