// The desktop app in its real window: how a person gets a model, and that a chat goes on after whatever happens to the app; what needs the
// system's own web view: keys, languages, documents.
import assert from 'node:assert/strict';
import { cp, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { CACHE_BYTES, Home, program, run } from './core.mjs';
import { longText, pdf } from './files.mjs';
import { ENDLESS } from './flow.mjs';
import { FakeHub, recommendedNames, tinyModel } from './hub.mjs';
import { until } from './until.mjs';
import { CONTROL, ENTER, ESCAPE, Window } from './webdriver.mjs';

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
async function answerShortly(home, maxTokens = 100) {
  const core = await home.start();
  await core.set({ temperature: 0, max_tokens: maxTokens, holds_loops: false, cache_budget_bytes: CACHE_BYTES });
  await core.end('SIGTERM');
}

/** Waits until no app uses the data folder. */
async function isFree(home) {
  const lock = `${home.env.CAIRN_HOME}/lock`;
  await until(
    'the data folder is free again',
    async () => (await run('flock', ['--nonblock', lock, 'true'], home.env)).code === 0,
  );
}

/** Closes the window as a person does, and waits until the app has ended. */
async function quit(home, window) {
  await window.close();
  await isFree(home);
  await window.end();
}

const lastAnswer = async (window) => (await window.texts(`${ANSWER} .markdown`)).at(-1) ?? '';
/** Of older answers it is shown only under the pointer. */
const lastLine = async (window) => (await window.texts(`${ANSWER} summary`)).at(-1);

const isReady = (window) =>
  until('the engine is ready', async () => (await window.texts('[data-testid=engine-state]')).join() === 'Ready');

/** One press, in the moment in which a button can be pressed. */
const pressWhenEnabled = (window, name) =>
  until(`${name} can be pressed`, () =>
    window.evaluate((label) => {
      const button = document.querySelector(`button[aria-label="${label}"]`);
      if (button === null || button.disabled) return false;
      button.click();
      return true;
    }, name),
  );

test('the desktop app answers, closes and comes back with the conversation', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t);
  await answerShortly(home);

  let window = await Window.open(t, program('cairn-app'), home.env);
  await ask(window, 'Hello, window', 1);
  assert.match(await lastLine(window), /^Read \d+ tokens$/);
  await ask(window, 'And again', 2);
  assert.match(await lastLine(window), /^Continued/);
  await isReady(window);
  const answers = await window.texts(`${ANSWER} .markdown`);
  assert.equal(answers.length, 2);

  await quit(home, window);

  window = await Window.open(t, program('cairn-app'), home.env);
  await until('the conversation is there', async () => (await window.texts(ANSWER)).length === 2);
  assert.deepEqual(await window.texts(`${ANSWER} .markdown`), answers);
  assert.deepEqual(await window.texts('[aria-current=true]'), ['Hello, window']);
  await ask(window, 'And after a restart', 3);
  assert.match(await lastLine(window), /^Continued/);
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
    const folder = join(home.folder, 'dropped');
    await cp(tinyModel, folder, { recursive: true });
    const window = await Window.open(t, program('cairn-app'), home.env, [folder]);

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

    const imported = await window.invoke('import_model', { path: folder });
    assert.deepEqual(imported, { name: 'dropped', has_chat_template: true, rounded_weights: null });
    await window.press('Models');
    await until('the page shows it', async () => (await window.texts('h2')).includes('dropped'));
    await pressWhenEnabled(window, 'Load dropped');
    // A chat that has begun keeps its model.
    await window.press('New chat');
    await until('it is the model', async () =>
      (await window.texts('button[aria-haspopup=dialog]')).includes('dropped'),
    );
    await isReady(window);
    await ask(window, 'And now?', 1);
  },
);

test('the models of an added folder are listed, run, and go with it', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t, []);
  await answerShortly(home, 20);
  const folder = join(home.folder, 'my models');
  await cp(tinyModel, join(folder, 'mine'), { recursive: true });
  const before = await readdir(join(folder, 'mine'));
  const window = await Window.open(t, program('cairn-app'), home.env, [folder]);
  await window.press('Models');
  const isListed = async () => (await window.texts('h2')).includes('mine');
  for (const path of [home.folder, '/etc', join(folder, 'mine')]) {
    const { failure } = await window.call({ type: 'add_model_folder', path });
    assert.match(failure.message, /was not chosen here/);
  }
  assert.equal((await window.call({ type: 'add_model_folder', path: folder })).reply.type, 'model_folders');
  await until('its model is listed', isListed);
  await pressWhenEnabled(window, 'Load mine');
  await isReady(window);
  await window.press('New chat');
  await ask(window, 'hello', 1);

  await window.press('Models');
  await window.press(`Remove ${folder}`);
  await until('the model is gone', async () => !(await isListed()));
  await window.press('Undo');
  await until('it is listed again', isListed);
  await window.press(`Remove ${folder}`);
  await until('it is gone again', async () => !(await isListed()));
  assert.deepEqual(await readdir(join(folder, 'mine')), before, 'its files are as they were');
});

test('a second launch shows the window of the first', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t);
  const window = await Window.open(t, program('cairn-app'), home.env);
  await window.valueOf(MESSAGE);
  // It needs no display of its own.
  const { code, stdout } = await run(program('cairn-app'), [], { ...home.env, DISPLAY: '', WAYLAND_DISPLAY: '' });
  assert.deepEqual({ code, stdout }, { code: 0, stdout: '' });
  await quit(home, window);
});

test('an answer goes on where it was when the app was killed', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t);
  await answerShortly(home, ENDLESS);
  let window = await Window.open(t, program('cairn-app'), home.env);
  await window.type(MESSAGE, `Go on and on${ENTER}`);
  await until('some of the answer is written', async () => (await lastAnswer(window)).length > 50);
  const shown = await lastAnswer(window);
  await until('it is stored', () => home.hasStored(shown));
  await window.end('SIGKILL');
  await isFree(home);

  window = await Window.open(t, program('cairn-app'), home.env);
  await until('the answer is there', async () => (await lastAnswer(window)).startsWith(shown));
  assert.match((await window.texts(ANSWER)).join(), /Cairn quit before this answer was finished/);
  const before = await lastAnswer(window);
  await window.press('Continue');
  await until('it goes on', async () => (await lastAnswer(window)).length > before.length + 50);
  await window.keys(ESCAPE);
  await until('it was stopped', async () => (await window.texts(`${ANSWER}[aria-busy=false]`)).length === 1);
  assert.ok((await lastAnswer(window)).startsWith(before));
});

test('the appearance and the language are chosen by keyboard, and stay', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t);
  let window = await Window.open(t, program('cairn-app'), home.env);
  /** What the page looks like, and its words. */
  const look = () =>
    window.evaluate(() => {
      if (!document.querySelector('nav')) return {};
      const [red] = /\d+/.exec(getComputedStyle(document.querySelector('nav')).backgroundColor);
      const { lang } = document.documentElement;
      return { isDark: Number(red) < 128, lang, placeholder: document.querySelector('textarea')?.placeholder };
    });
  await window.valueOf(MESSAGE);
  await window.evaluate(() => document.querySelector('textarea').focus());
  await window.keys(`${CONTROL},`);
  await until('the settings are open', async () => (await window.texts('h1')).includes('General'));
  await window.evaluate(() => document.querySelector('input[value=light]').click());
  await until('the page is light', async () => !(await look()).isDark);
  await window.evaluate(() => document.querySelector('input[value=light]').focus());
  await window.keys('\uE014');
  await until('the page is dark', async () => (await look()).isDark);
  await window.type('select', 'Deutsch');
  await until('the page is German', async () => (await window.texts('h1')).includes('Allgemein'));
  await window.keys(ESCAPE);
  await until('the chat is shown', async () => (await look()).placeholder === 'Nachricht schreiben');
  await quit(home, window);

  window = await Window.open(t, program('cairn-app'), home.env);
  await until('it is as it was', async () => {
    const { isDark, lang, placeholder } = await look();
    return isDark && lang === 'de' && placeholder === 'Nachricht schreiben';
  });
});

test('chats of another program come in, and a word in them is found by keyboard', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t);
  const file = join(home.folder, 'sharegpt.json');
  const said = (from, value) => ({ from, value });
  const chats = ['granite', 'slate', 'basalt'].map((stone) => ({
    id: stone,
    conversations: [
      said('human', `What is ${stone}?`),
      said('gpt', `${'It is a stone. '.repeat(200)}\n\nA cairn of **${stone}** stands long.`),
    ],
  }));
  await writeFile(file, JSON.stringify(chats));
  const window = await Window.open(t, program('cairn-app'), home.env, [file]);
  await window.valueOf(MESSAGE);
  const { num_added } = await window.invoke('import_chats', { path: file });
  assert.equal(num_added, 3);
  await until('they are listed', async () => (await window.texts('[data-conversation]')).length === 3);

  await window.evaluate(() => document.querySelector('textarea').focus());
  await window.keys(`${CONTROL}k`);
  await until('the palette has the focus', () => window.evaluate(() => document.activeElement.role === 'combobox'));
  await window.keys('cairn of slate');
  // At once, as a person types: the messages are still being looked for.
  await window.keys(ENTER);
  await until('the answer has the focus', () =>
    window.evaluate(() => document.activeElement.dataset.goal && document.activeElement.innerText.includes('slate')),
  );
  assert.deepEqual(await window.texts('[aria-current=true]'), ['What is slate?']);
});

test('a PDF is read ahead in the real window, asked about and looked into', { timeout: 900_000 }, async (t) => {
  const home = await Home.make(t);
  await answerShortly(home, 20);
  const window = await Window.open(t, program('cairn-app'), home.env);
  await window.valueOf(MESSAGE);
  await isReady(window);
  const bytes = [...pdf(['A cairn is built\nof flat stones.', longText(12)])];
  // As a person pastes a file; no driver can drop one.
  await window.evaluate((content) => {
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File([new Uint8Array(content)], 'cairns.pdf', { type: 'application/pdf' }));
    const event = new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true });
    document.querySelector('textarea').dispatchEvent(event);
  }, bytes);
  const documents = () => window.texts('section[aria-label="Documents"]');
  await until('it is read', async () => /Read \([\d,]+ tokens\)/.test((await documents()).join()));
  await ask(window, 'What is it built of?', 1);
  assert.match(await lastLine(window), /^Read while you typed/);
  await window.click('button[aria-label^="cairns.pdf"]');
  await until('its text is shown', async () =>
    (await window.texts('dialog[open] [role=region]')).join().includes('of flat stones.'),
  );
  await window.keys(ESCAPE);
  await until('it is closed', async () => (await window.texts('dialog[open]')).length === 0);
});
