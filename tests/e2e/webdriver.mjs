// A desktop program's window on a virtual display, driven by WebKitWebDriver over the W3C's WebDriver protocol.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, open } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { target } from './core.mjs';
import { LIMIT_MS, until } from './until.mjs';

/** The key of element ids in WebDriver replies. */
const ELEMENT = 'element-6066-11e4-a52e-4f735466cecf';
export const ENTER = '\uE007';
export const ESCAPE = '\uE00C';
/** Held until the end of what is typed. */
export const CONTROL = '\uE009';

/** Without a graphics card, and with a webview that accepts a driver. */
const ENVIRONMENT = {
  TAURI_WEBVIEW_AUTOMATION: 'true',
  WEBKIT_DISABLE_COMPOSITING_MODE: '1',
  WEBKIT_DISABLE_DMABUF_RENDERER: '1',
  LIBGL_ALWAYS_SOFTWARE: '1',
};

/** A running program and its window. */
export class Window {
  #process;
  #exited;
  #address;
  #session;

  /**
   * Starts `binary` with a display, a session bus and a driver of its own; all of them end with the test.
   * What they print goes to e2e/window.log in the target folder. Its page may open the files that `args` name:
   * no driver can choose or drop one.
   */
  static async open(t, binary, env, args = []) {
    const port = await freePort();
    // Other files of tests look for a free display at the same moment.
    const display = `--server-num=${100 + (process.pid % 1000) * 10}`;
    const command = ['--', 'xvfb-run', '--auto-servernum', display, 'WebKitWebDriver', `--port=${port}`];
    const window = new Window();
    await mkdir(join(target, 'e2e'), { recursive: true });
    const log = await open(join(target, 'e2e/window.log'), 'a');
    // A group of its own, so that one signal ends display, driver and program.
    window.#process = spawn('dbus-run-session', command, {
      env: { ...env, ...ENVIRONMENT },
      stdio: ['ignore', log.fd, log.fd],
      detached: true,
    });
    await log.close();
    t.after(() => window.end());
    window.#exited = once(window.#process, 'exit');
    window.#address = `http://127.0.0.1:${port}`;
    await until('the driver answers', () =>
      fetch(`${window.#address}/status`).then(
        () => true,
        () => false,
      ),
    );
    // A script has limits of its own, which say what it waited for.
    const timeouts = { script: 2 * LIMIT_MS };
    const capabilities = { alwaysMatch: { timeouts, 'webkitgtk:browserOptions': { binary, args } } };
    const { sessionId } = await window.#ask('POST', '/session', { capabilities });
    window.#session = `/session/${sessionId}`;
    return window;
  }

  /** Waits for an element and types into it. */
  async type(selector, keys) {
    const element = await this.#find('css selector', selector);
    await this.#ask('POST', `${element}/value`, { text: keys });
  }

  /** Types into whatever has the focus. */
  async keys(keys) {
    const active = await this.#ask('GET', `${this.#session}/element/active`);
    await this.#ask('POST', `${this.#session}/element/${active[ELEMENT]}/value`, { text: keys });
  }

  /** Waits for an element and clicks it. */
  async click(selector) {
    const element = await this.#find('css selector', selector);
    await this.#ask('POST', `${element}/click`, {});
  }

  /** Waits for a field; returns what is in it. */
  async valueOf(selector) {
    const element = await this.#find('css selector', selector);
    return this.#ask('GET', `${element}/property/value`);
  }

  /** Waits for a button of this name and presses it. */
  async press(name) {
    const element = await this.#find('xpath', `//button[@aria-label = "${name}" or normalize-space() = "${name}"]`);
    await this.#ask('POST', `${element}/click`, {});
  }

  /** The address of an element, once there is one. */
  async #find(using, value) {
    const elements = () => this.#ask('POST', `${this.#session}/elements`, { using, value });
    const element = await until(`${value} is there`, async () => (await elements())[0]);
    return `${this.#session}/element/${element[ELEMENT]}`;
  }

  /** Runs a command of the shell, as the page does when something is chosen or dropped; only for what {@link open} was given. */
  async invoke(command, values) {
    return this.evaluate((name, given) => window.__TAURI_INTERNALS__.invoke(name, given), command, values);
  }

  /** Sends a command to the app, as the page does; returns its frame. */
  async call(command) {
    return this.evaluate((given) => {
      const { invoke, transformCallback } = window.__TAURI_INTERNALS__;
      return new Promise((resolve, reject) => {
        const id = transformCallback(({ message }) => message && resolve(message));
        invoke('call', { command: given, channel: `__CHANNEL__:${id}` }).catch(reject);
      });
    }, command);
  }

  /** Runs a function of the page, which may take its time, with these values; returns what it returns. */
  async evaluate(work, ...args) {
    const script = `return (${work})(...arguments)`;
    return this.#ask('POST', `${this.#session}/execute/sync`, { script, args });
  }

  /** The texts of all elements that a selector finds, as they are seen. */
  async texts(selector) {
    const read = (selector) => [...document.querySelectorAll(selector)].map((element) => element.innerText.trim());
    return this.evaluate(read, selector);
  }

  /** Closes the window as a user would. */
  async close() {
    await this.#ask('DELETE', `${this.#session}/window`);
  }

  /** Ends the display, the driver and the program. */
  async end(signal = 'SIGTERM') {
    try {
      process.kill(-this.#process.pid, signal);
    } catch {
      // All of the group have ended.
    }
    await this.#exited;
  }

  async #ask(method, path, body) {
    const response = await fetch(this.#address + path, { method, body: body && JSON.stringify(body) });
    const { value } = await response.json();
    if (!response.ok) throw new Error(`${method} ${path}: ${value.error}: ${value.message}`);
    return value;
  }
}

/** A port of this machine that nobody uses at this moment. */
export async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}
