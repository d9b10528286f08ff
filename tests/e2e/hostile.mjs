// Texts that try to run something, to ask a server, or to lead away: as chats and models to give to an app, and the watch over its page.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { root, run } from './core.mjs';

/** The texts by category; the interface's own tests draw each of them alone. */
const corpus = JSON.parse(await readFile(join(root, 'ui/src/testing/hostile.json'), 'utf8'));

/** A port that notes whoever connects, whatever is spoken then. */
export class Canary {
  connections = 0;
  #server = createServer((socket) => {
    this.connections += 1;
    socket.on('error', () => {});
    socket.end('HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: *\r\nConnection: close\r\n\r\n');
  });

  static async start(t) {
    const canary = new Canary();
    canary.#server.listen(0, '127.0.0.1');
    await once(canary.#server, 'listening');
    canary.host = `127.0.0.1:${canary.#server.address().port}`;
    t.after(() => canary.#server.close());
    return canary;
  }
}

/** The texts by category, with every address in them that of the canary. */
export function textsFor(canary) {
  const aimed = (text) =>
    text
      .replaceAll(/https:(?=[/\\]{2}(?:\w+:\w+@)?[\w.-]+\.test)/g, 'http:')
      .replaceAll(/(?<![@\w.-])(?:evil|a|b|bank)\.test|127\.0\.0\.1:\d+/g, canary.host)
      .replaceAll(/@(?:evil|a|b|bank)\.test/g, `@${canary.host}`);
  return Object.fromEntries(Object.entries(corpus).map(([category, texts]) => [category, texts.map(aimed)]));
}

/**
 * A file of chats: one for each category, in which each text is asked, thought, called, answered, the name of the model, the reason of a
 * failure and a document with its name; and one for each text that has it as its title.
 */
export function chatFile(texts) {
  const now = Date.now();
  const inOrder = (messages) => {
    const ids = messages.map(() => randomUUID());
    return messages.map((message, index) => ({ id: ids[index], parent_id: ids[index - 1] ?? null, ...message }));
  };
  const asked = (text) => ({ role: 'user', text, documents: [{ name: text, kind: 'html', text }] });
  const answered = (text, index) => ({
    role: 'assistant',
    text,
    status: index % 3 === 0 ? 'failed' : 'complete',
    error: text,
    stats: figuresOf(text),
    segments: [
      { kind: 'reasoning', text, began_at_ms: 1, duration_ms: 2000 },
      { kind: 'tool_call', name: text, arguments: JSON.stringify({ text }), outcome: 'malformed', raw: text },
      { kind: 'text', text },
    ],
  });
  const categories = Object.entries(texts).map(([category, all], index) => ({
    id: randomUUID(),
    title: category,
    folder: all[0],
    system_prompt: all.join('\n'),
    updated_at_ms: now - index,
    messages: inOrder(all.flatMap((text, at) => [asked(text), answered(text, at)])),
  }));
  const titles = Object.values(texts)
    .flat()
    .map((title, index) => ({
      id: randomUUID(),
      title,
      updated_at_ms: now - 1000 - index,
      messages: inOrder([{ role: 'user', text: title }]),
    }));
  return { format: 'cairn-chats', version: 1, conversations: [...categories, ...titles] };
}

/** What a model of this name told of its answer. */
function figuresOf(model) {
  const zero = { queue_ms: 0, mlx_active_bytes: 1, mlx_peak_bytes: 1, process_bytes: 1, process_peak_bytes: 1 };
  const tokens = { num_prompt_tokens: 9, num_cached_tokens: 0, num_generation_tokens: 9 };
  const rates = { prompt_tps: 9, generation_tps: 9, time_to_first_token_ms: 9 };
  return { model, finish_reason: 'stop', cache_note: model, ...tokens, ...rates, ...zero };
}

/** Writes the chats, imports them into a data folder that no app uses, and adds a folder for every text that can be a model's name. */
export async function plant(home, texts) {
  const chats = chatFile(texts);
  const file = join(home.folder, 'hostile.json');
  await writeFile(file, JSON.stringify(chats));
  const { code, stdout, stderr } = await run(home.cairn, ['chats', 'import', file], home.env);
  assert.equal(code, 0, stderr);
  assert.match(stdout, new RegExp(`\\b${chats.conversations.length}\\b`), stdout);
  const names = Object.values(texts)
    .flat()
    .filter((text) => !/[/\p{Cc}]|^[. ]/u.test(text) && text.isWellFormed() && Buffer.byteLength(text) < 200);
  assert.ok(names.length > 100, `${names.length} can be names of models`);
  for (const name of names) await home.addBroken(name);
  return { chats: chats.conversations, names };
}

/**
 * Runs in the page: notes in `window.watched` whatever must never happen, from now on. Elements are looked at when they come, so that
 * it also sees those that go again.
 */
export function watchPage() {
  const seen = { ran: 0, trespasses: [], globals: new Set(Object.getOwnPropertyNames(window)), until };
  const note = (what) => seen.trespasses.length < 50 && seen.trespasses.push(what);
  // A browser may draw no frame for long, and then says nothing of it.
  const frame = () => new Promise((done) => [requestAnimationFrame(() => done(true)), setTimeout(done, 1000)]);
  /** Looks in each frame until `look` returns something truthy, and returns that; fails with `what` and what is on the page. */
  async function until(what, look, limitMs) {
    const deadline = performance.now() + limitMs;
    let found = look();
    let frames = 0;
    for (; !found && performance.now() < deadline; found = look()) if (await frame()) frames += 1;
    if (found) return found;
    throw new Error(`not true after ${frames} frames: ${what}; the page: ${document.body.innerText.slice(0, 500)}`);
  }
  window.watched = seen;
  window.ran = () => (seen.ran += 1);
  for (const name of ['alert', 'confirm', 'prompt', 'print', 'open']) window[name] = () => void note(`called ${name}`);
  document.addEventListener('securitypolicyviolation', (event) =>
    note(`tried ${event.violatedDirective} ${event.blockedURI} ${event.sample}`),
  );
  window.addEventListener('beforeunload', () => note('left the page'));
  const forbidden =
    'img, picture, script, iframe, frame, object, embed, portal, base, meta, video, audio, track, foreignObject, animate, set, use, ' +
    'image, style, template, form[action], [srcdoc], [ping], [formaction], [background], [srcset], [autofocus]:not([role=combobox])';
  const isOwn = (address) =>
    URL.canParse(address, location.href) && new URL(address, location.href).host === location.host;
  const look = (element) => {
    if (element.matches(forbidden)) note(`has ${element.outerHTML.slice(0, 200)}`);
    for (const { name, value } of element.attributes) {
      const leads = name === 'href' && element.localName === 'a';
      const isBad =
        /^on/.test(name) ||
        (leads && !/^(https?:|mailto:|#)/.test(value)) ||
        (['src', 'href', 'xlink:href', 'data', 'action', 'poster'].includes(name) && !leads && !isOwn(value)) ||
        (name === 'style' && /url\(|@import/i.test(value));
      if (isBad) note(`has ${name}=${value.slice(0, 200)} of ${element.localName}`);
    }
  };
  const lookAtAll = (node) => {
    if (!(node instanceof Element)) return;
    look(node);
    for (const inner of node.querySelectorAll('*')) look(inner);
  };
  lookAtAll(document.body);
  const observer = new MutationObserver((changes) => {
    for (const { type, target, addedNodes } of changes) {
      if (type === 'attributes') look(target);
      for (const node of addedNodes) lookAtAll(node);
    }
  });
  observer.observe(document, { subtree: true, childList: true, attributes: true });
}

/** Runs in the page: draws the rows of the list of chats, until there are so many; returns how many there are. */
export async function walkList({ count, limitMs }) {
  const list = document.querySelector('nav .scroll');
  const drawn = () => list.querySelectorAll('[data-conversation]').length;
  // Rows are added while the end of the list is on screen.
  const addMore = () => {
    list.scrollTop = 0;
    list.scrollTop = list.scrollHeight;
    return drawn() >= count;
  };
  await window.watched.until(`${count} chats are listed`, addMore, limitMs);
  list.scrollTop = 0;
  const goOn = () => {
    const before = list.scrollTop;
    list.scrollTop += list.clientHeight;
    return list.scrollTop === before;
  };
  await window.watched.until('the end of the list is seen', goOn, limitMs);
  return drawn();
}

/**
 * Runs in the page: opens the chat with this id, draws all of it on the way from its start to its end, unfolds what is folded, and opens
 * its first document. Returns how many messages were drawn.
 */
export async function walkChat({ id, limitMs }) {
  const until = (what, look) => window.watched.until(what, look, limitMs);
  const row = document.querySelector(`[data-conversation="${id}"]`);
  row.scrollIntoView({ block: 'center' });
  row.click();
  const find = () => document.querySelector('main section:has([data-message])');
  await until('the chat opens', () => row.getAttribute('aria-current') === 'true' && find());
  const box = find();
  const seen = new Set();
  box.scrollTop = 0;
  await until('its end is seen', () => {
    for (const fold of box.querySelectorAll('.reasoning [aria-expanded=false]')) fold.click();
    for (const message of box.querySelectorAll('[data-message]')) seen.add(message.dataset.message);
    // What is seen is drawn first; what is far behind may be released again.
    const view = box.getBoundingClientRect();
    const isInView = ({ top, bottom }) => bottom > view.top && top < view.bottom;
    const isDrawn = [...box.querySelectorAll('.gap')].every((gap) => !isInView(gap.getBoundingClientRect()));
    if (!isDrawn) return false;
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 2;
    box.scrollTop += box.clientHeight - 40;
    return isAtEnd;
  });
  const chip = box.querySelector('.chip .open');
  if (chip) {
    const reader = () => document.querySelector('dialog[open]');
    chip.click();
    await until('the document is shown', () => reader()?.querySelector('[role=region]')?.textContent);
    reader().close();
    await until('the document is closed', () => !reader());
  }
  return seen.size;
}

/**
 * Runs in the page: draws the sidebar and the inspector again, opens the menu of the models and their page, and the palette on a word of
 * the texts; returns how many models were listed and how many entries of the palette had the word.
 */
export async function tourPages({ word, limitMs }) {
  const until = (what, look) => window.watched.until(what, look, limitMs);
  const press = async (selector) =>
    (await until(`${selector} can be pressed`, () => document.querySelector(selector))).click();
  const inDialog = (selector) => document.querySelectorAll(`dialog[open] ${selector}`).length;

  await press('nav [aria-label="Hide sidebar"]');
  await press('[aria-label="Show sidebar"]');
  await press('[aria-label="Show the inspector"]');
  await until('the inspector is shown', () => document.querySelector('aside'));
  await press('form [aria-haspopup=dialog]');
  await until('the models can be chosen', () => document.querySelector('[popover]:popover-open'));
  document.querySelector('[popover]:popover-open').hidePopover();

  await press('nav ul[aria-label=Pages] li:nth-child(2) button');
  await until('the models are listed', () => document.querySelectorAll('main h2').length > 1);
  const main = document.querySelector('main');
  const models = document.querySelectorAll('main h2').length;
  for (const box of [main, ...main.querySelectorAll('*')]) box.scrollTop = box.scrollHeight;

  await press('nav .search');
  const field = await until('the palette is open', () => document.querySelector('dialog[open] [role=combobox]'));
  field.value = word;
  field.dispatchEvent(new Event('input', { bubbles: true }));
  // Titles are found at once, messages when the core has answered.
  const found = await until('messages are found', () => {
    const count = inDialog('[role=option]');
    return inDialog('[role=option] mark') > 0 && count > 10 ? count : 0;
  });
  document.querySelector('dialog[open]').close();
  await press('[data-conversation]');
  await until('a chat is shown', () => document.querySelector('main [data-message]'));
  return { models, found };
}

/** Runs in the page: what `watchPage` has noted. */
export function lookBack() {
  const { ran, trespasses, globals } = window.watched;
  const added = Object.getOwnPropertyNames(window).filter((name) => !globals.has(name) && name !== 'watched');
  return { ran, trespasses, added: added.filter((name) => name !== 'ran') };
}

/** Runs in the page: does what the texts try to do, so that a test can show that it would be noticed. */
export async function trespass(host) {
  window.ran();
  window.hasRun = true;
  window.alert('hostile');
  const refused = new Promise((done) => document.addEventListener('securitypolicyviolation', done, { once: true }));
  document.body.append(Object.assign(new Image(), { src: `http://${host}/image.png` }));
  const link = document.createElement('a');
  link.setAttribute('href', 'javascript:ran()');
  document.body.append(link);
  await refused;
  await fetch(`http://${host}/fetch`, { mode: 'no-cors' }).catch(() => {});
  link.remove();
}
