// The desktop app in its real window: a conversation, its figures, and that it is there again after a restart.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Home, program, run } from './core.mjs';
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

test('the desktop app answers, closes and comes back with the conversation', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t);
  const core = await home.start();
  await core.set({ temperature: 0, max_tokens: 100 });
  await core.end('SIGTERM');

  let window = await Window.open(t, program('cairn-app'), home.env);
  // That of an older answer is shown only under the pointer.
  const line = async () => (await window.texts(`${ANSWER} summary`)).at(-1);
  await ask(window, 'Hello, window', 1);
  assert.match(await line(), /^Read \d+ tokens$/);
  await ask(window, 'And again', 2);
  assert.equal(await line(), 'Continued');
  await until(
    'the engine is ready again',
    async () => (await window.texts('[data-testid=engine-state]')).join() === 'Ready',
  );
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
