// What the window says about a chat's saved context is what the next turn then does, whatever has happened to the chat meanwhile.
import assert from 'node:assert/strict';
import { cp, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { findings } from './axe.mjs';
import { CACHE_BYTES } from './core.mjs';
import { ENDLESS, flow } from './flow.mjs';
import { until } from './until.mjs';

const QUESTION = 'And then?';

const READY = /^Ready to continue$/;
const ONCE_LOADED = /^Ready to continue once tiny-chat is loaded$/;
const PARTLY = /^Partly saved: the rest will be read again once/;
const AGAIN = /^Will be read again once/;

/** Another model: the same weights under another name would continue the chat. */
const addOther = (home) => home.addTinyModel('tiny-other', 'tiny-chat', { rope_theta: 20_000 });

/** Another model whose tokens are other letters: what is kept of the messages is of no use to it. */
async function addOtherTokenizer(home) {
  await home.addTinyModel('tiny-other', 'tiny-chat', { rope_theta: 20_000 });
  const file = join(home.modelFolder('tiny-other'), 'tokenizer.json');
  const tokenizer = JSON.parse(await readFile(file, 'utf8'));
  const { vocab } = tokenizer.model;
  const letters = Object.keys(vocab).filter((token) => /^[a-z]$/.test(token));
  const ids = letters.map((letter) => vocab[letter]);
  for (const [index, letter] of letters.entries()) vocab[letter] = ids[(index + 1) % ids.length];
  await writeFile(file, JSON.stringify(tokenizer));
}

/**
 * What happened, what the window says then, who answers (`by`), and what the next turn reads again of what the model has read before: `nothing`, `some` of it
 * or `all`; and because of what, in words.
 */
const TABLE = [
  { what: 'nothing has happened', says: READY, again: 'nothing' },
  {
    what: 'the model was unloaded',
    act: ({ core }) => core.call({ type: 'unload_model' }),
    says: ONCE_LOADED,
    again: 'nothing',
  },
  {
    what: 'Cairn was quit and opened',
    act: restart('SIGTERM'),
    says: READY,
    again: 'nothing',
  },
  {
    what: 'Cairn was killed',
    act: restart('SIGKILL'),
    says: READY,
    again: 'nothing',
  },
  {
    what: 'another model was loaded elsewhere',
    prepare: addOther,
    act: ({ core }) => core.call({ type: 'load_model', name: 'tiny-other' }),
    says: READY,
    again: 'nothing',
  },
  {
    what: 'its model was unloaded, and another one loaded',
    prepare: addOther,
    act: async ({ core }) => {
      await core.call({ type: 'unload_model' });
      await core.call({ type: 'load_model', name: 'tiny-other' });
    },
    says: ONCE_LOADED,
    again: 'nothing',
  },
  {
    what: 'another chat was answered by another model',
    prepare: addOther,
    act: async ({ core, page, id }) => {
      await page.button('New chat').click();
      await page.chooseModel('tiny-other');
      await page.ask('What else is old?');
      const { conversation } = await core.call({ type: 'get_conversation', id });
      await page.row(conversation.title).click();
      await page.shows('Which of them are the oldest?');
    },
    says: READY,
    again: 'nothing',
  },
  {
    what: 'another model was chosen in it',
    prepare: addOther,
    act: ({ page }) => page.chooseModel('tiny-other'),
    says: AGAIN,
    again: 'all',
    by: 'tiny-other',
  },
  {
    what: 'a model with another tokenizer was chosen in it',
    prepare: addOtherTokenizer,
    act: ({ page }) => page.chooseModel('tiny-other'),
    says: AGAIN,
    again: 'all',
    because: /First reading with this model/,
    by: 'tiny-other',
  },
  {
    what: 'another model was chosen in it, and the first one again',
    prepare: addOther,
    act: async ({ page }) => {
      await page.chooseModel('tiny-other');
      await page.chooseModel('tiny-chat');
    },
    says: READY,
    again: 'nothing',
  },
  {
    what: 'the system prompt was changed',
    act: ({ core, id }) =>
      core.call({
        type: 'set_system_prompt',
        id,
        system_prompt: 'You like old walls.',
      }),
    says: AGAIN,
    again: 'all',
    because: /the system prompt changed/,
  },
  {
    what: 'the system prompt was changed and changed back',
    act: async ({ core, id }) => {
      await core.call({
        type: 'set_system_prompt',
        id,
        system_prompt: 'You like old walls.',
      });
      await core.call({ type: 'set_system_prompt', id, system_prompt: '' });
    },
    says: READY,
    again: 'nothing',
  },
  {
    what: "the model's template was changed",
    act: async (state) => {
      await state.core.end('SIGTERM');
      await state.home.setTemplate(
        'tiny-chat',
        "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}[assistant] ",
      );
      await reopen(state);
      await state.core.call({ type: 'load_model', name: 'tiny-chat' });
    },
    says: AGAIN,
    again: 'all',
    because: /the chat template of the model changed/,
  },
  {
    what: 'its saved context was deleted',
    act: ({ core, id }) => core.call({ type: 'purge_conversation', id }),
    says: AGAIN,
    again: 'all',
  },
  {
    what: 'its saved context made room for others',
    act: async ({ core }) => {
      // What a model has in use does not go.
      await core.call({ type: 'unload_model' });
      await core.set({ cache_ram_budget_bytes: 0, cache_budget_bytes: 0 });
      await until('nothing is saved', async () => !(await core.conversations())[0].conversation.cache?.cached_tokens);
      await core.set({
        cache_ram_budget_bytes: CACHE_BYTES,
        cache_budget_bytes: CACHE_BYTES,
      });
      await core.call({ type: 'load_model', name: 'tiny-chat' });
    },
    says: AGAIN,
    again: 'all',
  },
  {
    what: 'its last question was edited',
    act: async ({ page }) => {
      const questions = page.region('Messages').getByRole('article', { name: 'You' });
      await questions.last().hover();
      await questions.last().getByRole('button', { name: 'Edit', exact: true }).click();
      await page.box('Your message').fill('Something else about walls');
      await page.box('Your message').press('Enter');
      await page.shows('Something else about walls');
      await page.finished();
    },
    says: READY,
    again: 'nothing',
  },
  {
    what: 'an answer was stopped',
    act: async ({ core, page }) => {
      await core.set({ max_tokens: ENDLESS });
      await page.send('Tell me more');
      await page.written(30);
      await page.stop.click();
      await page.finished();
      await core.set({ max_tokens: 40 });
    },
    says: READY,
    again: 'nothing',
  },
  {
    what: 'its export as messages was imported beside it',
    act: async (state) => {
      await takeIn(state, await exported(state, 'openai'));
      await opened(state);
    },
    says: READY,
    again: 'nothing',
  },
  {
    what: 'it was deleted for good, and its export was imported',
    // The window asks for what goes the same moment.
    expected: /status of 404/,
    act: async (state) => {
      const file = await exported(state);
      await state.core.call({ type: 'purge_conversation', id: state.id });
      await state.core.call({ type: 'delete_conversations', ids: [state.id] });
      await takeIn(state, file);
      await opened(state);
    },
    says: AGAIN,
    again: 'all',
  },
  {
    what: 'its export was imported on another machine',
    act: async (state) => {
      const file = await exported(state);
      await moveOut(state);
      await takeIn(state, file);
      await state.page.driver.reload();
      await opened(state);
    },
    says: AGAIN,
    again: 'all',
  },
  {
    what: 'its saved context was imported on another machine, and a chat begun with it',
    act: async (state) => {
      const file = await fetched(state.core, `/api/cache/export?type=conversation&id=${state.id}`);
      await moveOut(state);
      const { preview } = await sent(state.core, '/api/cache/import', file, 'walls.safetensors');
      const named = { type: 'confirm_import', token: preview.token, name: 'Walls', check: false };
      await state.core.call(named);
      await state.page.driver.reload();
      await state.page.startingPoint('Walls').click();
      await state.page.driver.getByRole('complementary', { name: 'Starting point' }).waitFor();
    },
    says: READY,
    again: 'nothing',
  },
];

/** Goes to a machine that has the same models and nothing else. */
async function moveOut(state) {
  const { env } = state.home;
  await state.core.end('SIGTERM');
  const before = env.CAIRN_HOME;
  env.CAIRN_HOME = join(state.home.folder, 'another home');
  await cp(join(before, 'models'), join(env.CAIRN_HOME, 'models'), {
    recursive: true,
  });
  state.core = await state.home.start(state.core);
  await state.core.set({
    temperature: 0,
    max_tokens: 40,
    holds_loops: false,
    cache_budget_bytes: CACHE_BYTES,
  });
  await state.core.call({ type: 'load_model', name: 'tiny-chat' });
}

/** The chat as a file of chats. */
function exported({ core, id }, format = 'json') {
  return fetched(core, `/api/chats/export?ids=${id}&format=${format}`);
}

async function fetched(core, address) {
  const response = await fetch(new URL(address, core.url), { headers: { authorization: `Bearer ${core.token}` } });
  assert.ok(response.ok, `status ${response.status}`);
  return response.blob();
}

/** Uploads a file; returns the reply. */
async function sent(core, address, body, name) {
  const headers = { authorization: `Bearer ${core.token}`, 'x-file-name': name };
  const response = await fetch(new URL(address, core.url), { method: 'POST', headers, body });
  return (await response.json()).reply;
}

/** Imports a file of chats; `state.id` is the chat's id from then on. */
async function takeIn(state, file) {
  const { imported } = await sent(state.core, '/api/chats/import', file, 'chats.json');
  assert.equal(imported.num_added, 1, JSON.stringify(imported));
  state.id = imported.first_id;
}

/** Opens the newest chat, which has come from a file. */
async function opened({ page, core, id }) {
  const { conversation } = await core.call({ type: 'get_conversation', id });
  const rows = page.row(conversation.title);
  // The list has it a moment later; another of the same title may stand there already.
  await until('the chat that was imported is opened', async () => {
    for (const row of await rows.all()) {
      await row.click();
      await page.answer.waitFor();
      if ((await page.driver.evaluate(() => localStorage.getItem('cairn.conversation'))) === id) return true;
    }
    return false;
  });
}

function restart(signal) {
  return async (state) => {
    await state.core.end(signal);
    await reopen(state);
  };
}

/** Opens Cairn again where it was, and the chat in it. */
async function reopen(state) {
  state.core = await state.home.start(state.core);
  await state.page.driver.reload();
  await state.page.message.waitFor();
}

/** The model that wrote the last answer of the open chat. */
async function writtenBy({ core, page }) {
  const id = await page.driver.evaluate(() => localStorage.getItem('cairn.conversation'));
  const { messages } = await core.call({ type: 'get_conversation', id });
  return messages.at(-1).model;
}

for (const { what, prepare, act, says, again, because, expected, by = 'tiny-chat' } of TABLE) {
  flow(
    `the window tells the truth about a chat when ${what}`,
    { models: ['tiny-chat'], prepare, maxTokens: 40, expected },
    async ({ home, core, page }) => {
      await core.call({ type: 'load_model', name: 'tiny-chat' });
      await page.ask('Tell me about stones, and about the walls that are made of them.');
      await page.ask('Which of them are the oldest?');
      const [{ conversation }] = await core.conversations();
      const state = { home, core, page, id: conversation.id };
      const isWhole = async () => (await state.core.conversations())[0].conversation.cache?.is_whole;
      await until('all of it is saved', isWhole);
      await act?.(state);
      const panel = (await page.inspector()).getByRole('region', { name: 'Saved context of this chat' });
      const outlook = panel.getByRole('heading', { level: 4 });
      let heading;
      await until(`${what}: the window says ${says}`, async () => {
        heading = await outlook.innerText();
        return says.test(heading);
      }).catch((error) => assert.fail(`${error.message}; the window says: ${heading}`));
      await page.ask(QUESTION);
      assert.equal(await writtenBy(state), by);
      const { cached, prompt } = await page.cached();
      const before = prompt - QUESTION.length;
      if (again === 'nothing') assert.match(await page.statusLine.innerText(), /^Continued/);
      else assert.match(await page.statusLine.innerText(), /^(Read|First)/);
      if (because) assert.match(await page.statusLine.innerText(), because);
      if (again === 'all') assert.ok(cached < before / 2, `${cached} of ${before} tokens were saved`);
    },
  );
}

flow(
  'two chats with two models alternate, and each keeps its place',
  { models: ['tiny-chat'], prepare: addOther, maxTokens: 40 },
  async ({ core, page }) => {
    await core.call({ type: 'load_model', name: 'tiny-chat' });
    await page.ask('Tell me about stones');
    await page.button('New chat').click();
    await page.chooseModel('tiny-other');
    await page.ask('Tell me about walls');
    for (const [title, model] of [
      ['Tell me about stones', 'tiny-chat'],
      ['Tell me about walls', 'tiny-other'],
      ['Tell me about stones', 'tiny-chat'],
    ]) {
      await page.row(title).click();
      await page.shows(title);
      await page.button(`Model: ${model}`).waitFor();
      const said = await (await page.inspector()).innerText();
      assert.match(said, model === 'tiny-chat' ? /Of the last answer/ : /Chosen in this chat/);
      await page.ask(QUESTION);
      const row = (await core.conversations()).find(({ conversation }) => conversation.title === title);
      assert.equal(row.messages.at(-1).model, model);
      assert.match(await page.statusLine.innerText(), /^Continued/);
    }
  },
);

flow(
  'a chat whose model is not in memory has it loaded, or is answered by the loaded one',
  { models: ['tiny-chat'], prepare: addOther, maxTokens: 40 },
  async ({ core, page }) => {
    await core.call({ type: 'load_model', name: 'tiny-chat' });
    await page.ask('Tell me about stones');
    const waits = page.driver.getByText('tiny-chat will be loaded when you ask.');
    for (const isChosen of [false, true]) {
      await core.call({ type: 'load_model', name: 'tiny-chat' });
      await core.call({ type: 'unload_model' });
      await core.call({ type: 'load_model', name: 'tiny-other' });
      await waits.waitFor();
      for (const colorScheme of ['light', 'dark']) {
        await page.driver.emulateMedia({ colorScheme });
        assert.deepEqual(await findings(page.driver), [], colorScheme);
      }
      if (isChosen) {
        await page.button('Answer with tiny-other instead').click();
        await until('the field has the focus', async () => (await page.focused()) === 'Message');
      }
      await page.ask(QUESTION);
      const [{ conversation, messages }] = await core.conversations();
      const expected = isChosen ? 'tiny-other' : 'tiny-chat';
      assert.equal(messages.at(-1).model, expected);
      const source = isChosen ? 'chat' : 'answer';
      assert.deepEqual(conversation.model, { name: expected, source, missing: null });
      await waits.waitFor({ state: 'detached' });
      if (!isChosen) continue;
      // Another model was meant to read the chat: nothing was lost, and the way back is behind the figures.
      assert.equal(await page.statusLine.innerText(), 'First reading with this model');
      const back = page.button('Go on with tiny-chat');
      assert.equal(await back.isVisible(), false);
      await page.statusLine.click();
      await back.waitFor();
    }
    // One that is gone is named beforehand.
    await core.call({ type: 'load_model', name: 'tiny-chat' });
    await core.call({ type: 'delete_model', name: 'tiny-other' });
    const gone = page.driver.getByText('tiny-other is not here; tiny-chat answers.');
    await gone.waitFor();
    await page.button('Keep tiny-chat').waitFor();
    const panel = (await page.inspector()).getByText(
      'It is saved for tiny-other, which is not here; tiny-chat will read it again.',
    );
    await panel.waitFor();
    await page.ask(QUESTION);
    const [{ messages }] = await core.conversations();
    assert.equal(messages.at(-1).model, 'tiny-chat');
    // Once that has answered it is the chat's, and nothing is missing.
    await gone.waitFor({ state: 'detached' });
    await panel.waitFor({ state: 'detached' });
  },
);

flow(
  'a model that was chosen and is gone before it was asked is told as gone',
  { models: ['tiny-chat'], prepare: addOther, maxTokens: 40 },
  async ({ core, page }) => {
    await core.call({ type: 'load_model', name: 'tiny-chat' });
    await page.ask('Tell me about stones');
    await page.chooseModel('tiny-other');
    await page.button('Model: tiny-other').waitFor();
    await core.call({ type: 'delete_model', name: 'tiny-other' });
    const gone = page.driver.getByText('tiny-other is not here; tiny-chat answers.');
    await gone.waitFor();
    await page.button('Model: tiny-chat').waitFor();
    await page.ask(QUESTION);
    await gone.waitFor({ state: 'detached' });
    const [{ conversation, messages }] = await core.conversations();
    assert.equal(messages.at(-1).model, 'tiny-chat');
    assert.deepEqual(conversation.model, { name: 'tiny-chat', source: 'answer', missing: null });
  },
);
