// The desktop app in its real window: a conversation that is there again after a restart, and how a person gets a model.
import assert from 'node:assert/strict';
import { cp } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { CACHE_BYTES, Home, program, run } from './core.mjs';
import { FakeHub, recommendedNames, tinyModel } from './hub.mjs';
import { until } from './until.mjs';
import { ENTER, Window } from './webdriver.mjs';

const ANSWER = 'article[aria-label="Answer"]';
const MESSAGE = 'textarea[aria-label="Message"]:enabled';

/** Writes a message and waits until the `count`th answer is whole. */
async function ask(window, text, count) {
  await window.type(MESSAGE, text + ENTER);
  await until(
    `answer ${count} is whole`,
    async () => (await window.texts(`${ANSWER}[aria-busy=false] summary`)).length === count,
  );
}

/** Greedy answers of a length that no model's own end changes. */
async function answerShortly(home) {
  const core = await home.start();
  await core.set({ temperature: 0, max_tokens: 100, cache_budget_bytes: CACHE_BYTES });
  await core.end('SIGTERM');
}

const isReady = (window) =>
  until('the engine is ready', async () => (await window.texts('[data-testid=engine-state]')).join() === 'Ready');

test('the desktop app answers, closes and comes back with the conversation', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t);
  await answerShortly(home);

  let window = await Window.open(t, program('cairn-app'), home.env);
  // That of an older answer is shown only under the pointer.
  const line = async () => (await window.texts(`${ANSWER} summary`)).at(-1);
  await ask(window, 'Hello, window', 1);
  assert.match(await line(), /^Read \d+ tokens$/);
  await ask(window, 'And again', 2);
  assert.equal(await line(), 'Continued');
  await isReady(window);
  const answers = await window.texts(`${ANSWER} .markdown`);
  assert.equal(answers.length, 2);

  await window.close();
  const lock = `${home.env.CAIRN_HOME}/lock`;
  await until(
    'the data folder is free again',
    async () => (await run('flock', ['--nonblock', lock, 'true'], home.env)).code === 0,
  );
  await window.end();

  window = await Window.open(t, program('cairn-app'), home.env);
  await until('the conversation is there', async () => (await window.texts(ANSWER)).length === 2);
  assert.deepEqual(await window.texts(`${ANSWER} .markdown`), answers);
  assert.deepEqual(await window.texts('[aria-current=true]'), ['Hello, window']);
});

test(
  'the first launch of the desktop app leads to an answer, and a folder that is dropped to another model',
  { timeout: 900_000 },
  async (t) => {
    const home = await Home.make(t, []);
    const hub = await FakeHub.start(Object.fromEntries((await recommendedNames()).map((name) => [name, tinyModel])));
    t.after(() => hub.end());
    home.useHub(hub.endpoint);
    await answerShortly(home);
    const window = await Window.open(t, program('cairn-app'), home.env);

    await until('a model can be chosen', async () => (await window.texts('h2')).includes('Choose a model to start'));
    await window.press('Download and start');
    await isReady(window);
    await ask(window, 'Hello, window', 1);
    const [answer] = await window.texts(`${ANSWER} .markdown`);
    assert.ok(answer.length > 0);
    assert.ok(
      (await hub.requests()).some(({ side }) => side === 'Bytes'),
      'its weights came from the hub',
    );

    const folder = join(home.folder, 'dropped');
    await cp(tinyModel, folder, { recursive: true });
    assert.equal(await window.invoke('import_model', { path: folder }), 'dropped');
    await window.press('Models');
    await until('the page shows it', async () => (await window.texts('h2')).includes('dropped'));
    await window.press('Load dropped');
    await window.press('Hello, window');
    await until('it is the model', async () =>
      (await window.texts('button[aria-haspopup=dialog]')).includes('dropped'),
    );
    await isReady(window);
    await ask(window, 'And now?', 2);
  },
);
