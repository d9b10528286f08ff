// What a screen reader has to say: the roles and names of a page, what has the focus, and what is announced. Kept as files that are read by
// people and compared by tests; `CAIRN_TRANSCRIPTS=write` writes them.
import assert from 'node:assert/strict';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { root } from './core.mjs';
import { until } from './until.mjs';

const folder = join(root, 'tests/e2e/transcripts');

/** What differs between machines and runs, and how it is written instead. */
const FIGURES = [
  [/\b[\d,.]+ ([kMG]?B)\b/g, 'N $1'],
  [/\b[\d,.]+ (tok\/s|ms|s|min|h)\b/g, 'N $1'],
  [/\b[\d,.]+ tokens?\b/g, 'N tokens'],
  [/\b\d[\d,]* of (N|\d[\d,]*) /g, 'N of N '],
  [/\bjust now\b/g, 'a while ago'],
  [/: (ready in memory|on disk)$/gm, ': on disk'],
  // What a model with random weights writes.
  [/(Answer finished\.) .* (This answer)/g, '$1 … $2'],
];

export class Transcript {
  #page;
  #steps = [];

  /** Begins to listen for what is announced. */
  static async begin(page) {
    const transcript = new Transcript();
    transcript.#page = page;
    await page.driver.evaluate(listen);
    return transcript;
  }

  /** Waits until something like this was announced since the last step, and notes it. Other announcements may depend on the machine. */
  async hears(pattern) {
    const heard = await until(`${pattern} is announced`, () =>
      this.#page.driver.evaluate(
        ([source]) => window.announced.find((text) => new RegExp(source).test(text)),
        [pattern.source],
      ),
    );
    this.#steps.push(`# heard: ${plain(heard)}\n`);
  }

  /** Notes what has the focus, which is never the page itself, and what is there. */
  async sees(what, locator) {
    const { driver } = this.#page;
    const focus = await until(`something has the focus: ${what}`, () => driver.evaluate(focused));
    const tree = await locator.ariaSnapshot();
    this.#steps.push(`# ${what}\n# focus: ${plain(focus)}\n${plain(tree)}\n`);
    await driver.evaluate(() => window.announced.splice(0));
  }

  /** Compares it with the file of this name. */
  async check(name) {
    const file = join(folder, `${name}.txt`);
    const text = this.#steps.join('\n');
    if (process.env.CAIRN_TRANSCRIPTS === 'write') {
      await mkdir(folder, { recursive: true });
      return writeFile(file, text);
    }
    const hint = 'if that is meant, write it anew with CAIRN_TRANSCRIPTS=write, and read it';
    assert.equal(text, await readFile(file, 'utf8'), hint);
  }
}

/** Without what differs. */
function plain(text) {
  return FIGURES.reduce((words, [figure, name]) => words.replaceAll(figure, name), text);
}

/** Runs in the page: keeps what live regions say. */
function listen() {
  const regions = '[aria-live]:not([aria-live=off]), [role=status], [role=alert], [role=log], output';
  const last = new WeakMap();
  window.announced = [];
  const say = (region) => {
    const text = region.textContent.trim().replaceAll(/\s+/g, ' ');
    if (text !== '' && text !== last.get(region)) window.announced.push(text);
    last.set(region, text);
  };
  new MutationObserver((changes) => {
    const changed = new Set();
    for (const { target, addedNodes } of changes) {
      const element = target instanceof Element ? target : target.parentElement;
      if (element?.closest(regions)) changed.add(element.closest(regions));
      for (const added of addedNodes) {
        if (!(added instanceof Element)) continue;
        if (added.matches(regions)) changed.add(added);
        for (const region of added.querySelectorAll(regions)) changed.add(region);
      }
    }
    for (const region of changed) say(region);
  }).observe(document, { subtree: true, childList: true, characterData: true });
}

/** Runs in the page: the name of what has the focus, null for the page itself. */
function focused() {
  const active = document.activeElement;
  if (!active || active === document.body) return null;
  const label = active.getAttribute('aria-label') ?? active.labels?.[0]?.textContent ?? active.textContent;
  const kind = active.getAttribute('role') ?? active.localName;
  return `${kind} “${label.trim().replaceAll(/\s+/g, ' ')}”`;
}
