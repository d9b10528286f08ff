// A hub on loopback that a flow's core downloads from, and that misbehaves on demand (tests/fake-hub).
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { program, root } from './core.mjs';

/** The folder of a tiny random model that `cargo xtask tiny-models` writes. */
export const tinyModel = join(root, 'target/tiny-models/llama/tiny-chat');

/** The names of the models that Cairn recommends. */
export async function recommendedNames() {
  const file = join(root, 'crates/app/src/models/recommended.json');
  return JSON.parse(await readFile(file, 'utf8')).map((model) => model.name);
}

export class FakeHub {
  #child;
  #lines;

  /** Starts a hub that has these models, each a name with a folder or with the length of made-up weights. */
  static async start(models) {
    const hub = new FakeHub();
    const args = Object.entries(models).map(([name, source]) => `${name}=${source}`);
    hub.#child = spawn(program('fake-hub'), args, { stdio: ['pipe', 'pipe', 'inherit'] });
    hub.#lines = createInterface({ input: hub.#child.stdout })[Symbol.asyncIterator]();
    hub.endpoint = (await hub.#lines.next()).value;
    return hub;
  }

  /** Changes how it behaves; the lines it understands stand in tests/fake-hub/src/main.rs. */
  async be(line) {
    this.#child.stdin.write(`${line}\n`);
    assert.equal((await this.#lines.next()).value, 'ok');
  }

  /** All requests so far: at which host, for what, with which headers. */
  async requests() {
    this.#child.stdin.write('requests\n');
    return JSON.parse((await this.#lines.next()).value);
  }

  async end() {
    const ended = once(this.#child, 'exit');
    this.#child.stdin.end();
    await ended;
  }
}
