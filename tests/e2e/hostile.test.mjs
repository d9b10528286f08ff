// Texts that attack the page come in from outside, as imported chats with their documents and models and as answers: in Chromium and in
// the desktop app's real window nothing runs, nothing is asked, nothing leads away.
import assert from 'node:assert/strict';
import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { test } from 'node:test';
import { CACHE_BYTES, Home, program } from './core.mjs';
import { flow } from './flow.mjs';
import { Canary, lookBack, plant, textsFor, tourPages, trespass, walkChat, walkList, watchPage } from './hostile.mjs';
import { LIMIT_MS, until, within } from './until.mjs';
import { ENTER, Window } from './webdriver.mjs';

/** A model that answers with one text of each kind. */
const WRITER = '<img src=x onerror=ran()> writes';
/** Of the chats that only have a text as their title, one of so many is opened; all of them are listed. */
const TITLES_STEP = 8;
const HARMLESS = { ran: 0, trespasses: [], added: [] };

async function fill(home, texts) {
  const answer = Object.values(texts).map(([text]) => text);
  await home.addScripted(WRITER, answer.join('\n\n'));
  return plant(home, texts);
}

/** Shows everything that was planted; `evaluate` runs a function in the page. What gets through may break the page before its end. */
async function showAll(evaluate, planted) {
  try {
    await show(evaluate, planted);
  } catch (error) {
    const seen = JSON.stringify(await evaluate(lookBack));
    throw new Error(`${error.message}\nUntil then the watch had seen ${seen}`, { cause: error });
  }
}

async function show(evaluate, { chats, names }) {
  assert.equal(await evaluate(walkList, { count: chats.length, limitMs: LIMIT_MS }), chats.length);
  const opened = chats.filter(({ messages }, index) => messages.length > 1 || index % TITLES_STEP === 0);
  for (const { id, title, messages } of opened) {
    const drawn = await evaluate(walkChat, { id, limitMs: LIMIT_MS });
    assert.equal(drawn, messages.length, `so many messages of “${title}” were drawn`);
  }
  const { models, found } = await evaluate(tourPages, { word: 'script', limitMs: LIMIT_MS });
  assert.ok(models > names.length, `${models} models were listed`);
  assert.ok(found > 10, `${found} entries were found`);
}

test('the corpus is large', async (t) => {
  const canary = await Canary.start(t);
  const texts = Object.values(textsFor(canary)).flat();
  assert.ok(new Set(texts).size >= 300, `${texts.length} texts`);
  assert.ok(texts.filter((text) => text.includes(canary.host)).length >= 80, 'many of them ask the canary');
  assert.deepEqual(
    texts.filter((text) => /evil\.test/.test(text) && !/www\.evil/.test(text)),
    [],
    'all of those that ask somebody',
  );
});

let planted;
let canary;
flow(
  'nothing that was imported does anything in Chromium',
  {
    models: [],
    maxTokens: 5000,
    prepare: async (home, t) => {
      canary = await Canary.start(t);
      planted = await fill(home, textsFor(canary));
    },
  },
  async ({ core, page }) => {
    const { driver } = page;
    const trespasses = [];
    driver.on('request', (request) => {
      if (new URL(request.url()).host !== core.url.host) trespasses.push(`asked ${request.url()}`);
    });
    driver.on('dialog', (dialog) => {
      trespasses.push(`dialog ${dialog.message()}`);
      return dialog.dismiss();
    });
    // The page takes the token out of its own address; had it been loaded again, its watch would be gone.
    const own = new URL('/', core.url).href;
    driver.on('framenavigated', (frame) => frame.url() !== own && trespasses.push(`went to ${frame.url()}`));
    driver.context().on('page', (other) => trespasses.push(`opened ${other.url()}`));
    await driver.locator('[data-conversation]').nth(100).waitFor();
    await driver.evaluate(watchPage);

    const evaluate = (work, value) => within(`${work.name} ${value?.id ?? ''}`, driver.evaluate(work, value));
    await showAll(evaluate, planted);
    await page.button('New chat').first().click();
    await core.call({ type: 'load_model', name: WRITER });
    await page.button(`Model: ${WRITER}`).waitFor();
    await page.ask('Go');
    assert.deepEqual(await driver.evaluate(lookBack), HARMLESS);
    assert.deepEqual([trespasses, page.complaints, canary.connections], [[], [], 0]);

    // What the texts try would have been seen.
    await driver.evaluate(trespass, canary.host);
    checkSeen(await driver.evaluate(lookBack), canary);
    assert.ok(trespasses.some((line) => line.includes(canary.host)) || page.complaints.length > 1);
    page.complaints.length = 0;
  },
);

/** After `trespass`: all of it was noticed, and only what really went out reached the canary. */
function checkSeen({ ran, trespasses, added }, canary) {
  assert.deepEqual([ran, added], [1, ['hasRun']]);
  const told = trespasses.join('\n');
  const kinds = [/called alert/, /tried img-src/, /tried connect-src/, /has <img/, /has href=javascript:/];
  for (const kind of kinds) assert.match(told, kind);
  assert.equal(canary.connections, 0, 'the policy stops them');
}

/** Lets what the app would open in the system's browser go to a list instead; returns how to read it. */
async function catchLinks(home) {
  const folder = join(home.folder, 'programs');
  const list = join(home.folder, 'links');
  await mkdir(folder);
  await writeFile(join(folder, 'xdg-open'), `#!/bin/sh\necho "$1" >> '${list}'\n`);
  await chmod(join(folder, 'xdg-open'), 0o755);
  home.env.PATH = `${folder}${delimiter}${home.env.PATH}`;
  return async () => (await readFile(list, 'utf8').catch(() => '')).split('\n').filter(Boolean);
}

test('nothing that was imported does anything in the real window', { timeout: 1_800_000 }, async (t) => {
  const canary = await Canary.start(t);
  const home = await Home.make(t, []);
  const links = await catchLinks(home);
  const planted = await fill(home, textsFor(canary));
  const core = await home.start();
  await core.set({ temperature: 0, max_tokens: 5000, holds_loops: false, cache_budget_bytes: CACHE_BYTES });
  await core.end('SIGTERM');

  const window = await Window.open(t, program('cairn-app'), home.env);
  const listed = () => window.evaluate(() => document.querySelectorAll('[data-conversation]').length);
  await until('the chats are listed', async () => (await listed()) > 100);
  await window.evaluate(watchPage);
  const address = await window.evaluate(() => location.href);
  await showAll((work, value) => window.evaluate(work, value), planted);
  await window.press('New chat');
  await window.call({ type: 'load_model', name: WRITER });
  await window.type('textarea[aria-label="Message"]:enabled', `Go${ENTER}`);
  const answer = 'article[aria-label="Answer"][aria-busy=false] .markdown';
  await until('the answer is written', async () => (await window.texts(answer)).length > 0);

  assert.deepEqual(await window.evaluate(lookBack), HARMLESS);
  assert.equal(await window.evaluate(() => location.href), address);
  assert.deepEqual([canary.connections, await links()], [0, []]);

  // What the texts try would have been seen.
  await window.evaluate(trespass, canary.host);
  checkSeen(await window.evaluate(lookBack), canary);
  const goal = `http://${canary.host}/gone`;
  await window.evaluate((to) => location.assign(to), goal);
  await until('a link was handed out', async () => (await links()).includes(goal));
  await fetch(goal);
  assert.equal(canary.connections, 1);
});
