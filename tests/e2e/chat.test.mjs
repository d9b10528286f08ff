// What a person does in Cairn's chat, in Chromium against a real core: first run, answers, restarts, crashes, the list, narrow windows.
import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { findings } from './axe.mjs';
import { Home, program, run } from './core.mjs';
import { ENDLESS, flow } from './flow.mjs';
import { asSeen } from './page.mjs';
import { until } from './until.mjs';

/** A rate, and an amount of memory or disk, as the page shows them on any machine. */
const RATE = /^[\d,.]+ tok\/s$/;
const SIZE = '[\\d,.]+ [kMG]B';

/** Waits until this is what was copied. The button says so for a moment only, which a busy machine may pass over. */
const hasCopied = (page, text) =>
  until(`“${text}” is copied`, async () => (await page.driver.evaluate(() => navigator.clipboard.readText())) === text);

flow(
  'without a model the first page says what to do, and continues once there is one',
  { models: [] },
  async ({ home, page }) => {
    await page.driver.getByRole('heading', { name: 'Choose a model to start' }).waitFor();
    assert.equal(await page.message.isDisabled(), true);
    assert.equal(await page.status('engine-state').innerText(), 'No model loaded');

    await home.addTinyModel('tiny-chat');
    await page.driver.getByRole('heading', { name: 'A conversation keeps its place' }).waitFor();
    await page.ask('hello');
    assert.equal(await page.button('Model: tiny-chat').isVisible(), true);
  },
);

flow(
  'of several models one is named before it is loaded, and nothing is made while its file is gone',
  { models: ['tiny-chat'], maxTokens: 8, prepare: (home) => home.addTinyModel('tiny-other', 'tiny-chat') },
  async ({ core, home, page }) => {
    const { driver } = page;
    await page.button('Model: tiny-chat').waitFor();
    await page.shows('tiny-chat will be loaded when you ask.');
    assert.equal(await page.status('engine-state').innerText(), 'No model loaded');

    await page.message.fill('hello');
    await rm(join(home.modelFolder('tiny-chat'), 'model.safetensors'));
    await page.message.press('Enter');
    await page.shows(/^tiny-chat cannot be loaded\. .* tiny-other answers instead\./);
    assert.equal(await page.message.inputValue(), 'hello');
    assert.equal(await page.focused(), 'Message');
    assert.deepEqual(await core.conversations(), []);
    for (const colorScheme of ['light', 'dark']) {
      await driver.emulateMedia({ colorScheme });
      assert.deepEqual(await findings(driver), [], colorScheme);
    }

    await page.message.press('Enter');
    await page.finished();
    assert.equal(await page.button('Model: tiny-other').isVisible(), true);
    assert.deepEqual(await page.questionTexts(), ['hello']);

    // In a chat that has begun, too.
    await core.call({ type: 'unload_model' });
    await until('it is unloaded', async () => (await page.status('engine-state').innerText()) === 'No model loaded');
    await page.message.fill('and now?');
    await rm(home.modelFolder('tiny-other'), { recursive: true });
    // The app notices it by itself, and takes no message from then on.
    await page.shows('tiny-other is not here. Choose another model.');
    assert.equal(await page.message.inputValue(), 'and now?');
    assert.equal((await core.conversations())[0].messages.length, 2);
  },
);

flow('a message is answered word by word', { maxTokens: ENDLESS }, async ({ page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await page.send('How are you?');
  await page.written(30);
  await page.written((await page.answerText()).length + 1);
  await until('the pill says so', async () => (await page.status('engine-state').innerText()) === 'Writing');
  await page.openPage('Monitor');
  await until('and the monitor how fast', async () => RATE.test(await page.status('rate').innerText()));
  await page.backToChat();
  await page.stop.click();
  await until('the engine is ready again', async () => (await page.status('engine-state').innerText()) === 'Ready');
});

flow('an answer has its figures', { maxTokens: 1000 }, async ({ core, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  const answer = await page.ask('How are you?');

  const [{ messages }] = await core.conversations();
  assert.equal(answer, asSeen(messages[1].text));
  assert.deepEqual(await page.questionTexts(), ['How are you?']);
  await page.shows('This answer reached the limit of 1,000 tokens.');

  assert.match(await page.statusLine.innerText(), /^Read \d+ tokens$/);
  await page.statusLine.click();
  await page.shows(/^1,000 tokens at [\d,.]+ tok\/s$/);
  const figures = await page.figures();
  assert.equal(figures.Model, 'tiny-chat');
  assert.match(figures.Prompt, /^\d+ tokens read, 0 read before$/);
  assert.match(figures['Reading speed'], RATE);
  assert.match(figures['First token'], /^after [\d,.]+ (ms|s|min)/);
  assert.match(figures['App memory'], new RegExp(`^${SIZE} now, ${SIZE} at most$`));
  assert.match(figures['MLX memory'], new RegExp(`^${SIZE} now, ${SIZE} at most$`));

  assert.match(await page.status('memory').innerText(), new RegExp(`^${SIZE}$`));
  await page.openPage('Monitor');
  assert.equal(await page.status('device').innerText(), 'Processor');
  await until('saved context is on disk', async () => {
    const words = await page.status('saved-context').innerText();
    return new RegExp(`^${SIZE}$`).test(words) && words !== '0 MB';
  });
  // The monitor has a point a second.
  await until('the speed is shown', async () => RATE.test(await page.status('rate').innerText()));
  await page.shows(/median [\d,.]+ tok\/s$/);
  await page.backToChat();

  await page.button('Copy answer').click();
  await hasCopied(page, messages[1].text);
});

flow('Stop ends an answer, keeps its text and says so', { maxTokens: ENDLESS }, async ({ core, page }) => {
  await page.send('Go on and on');
  await page.written(60);
  await page.stop.click();
  await page.finished();
  await page.shows('You stopped this answer. Let it go on, or have it written again.');
  const text = await page.answerText();
  assert.ok(text.length >= 60, `${text.length} letters are left`);
  const [{ messages }] = await core.conversations();
  assert.deepEqual(
    messages.map(({ status, text }) => [status, asSeen(text)]),
    [
      ['complete', 'Go on and on'],
      ['stopped', text],
    ],
  );

  await core.set({ max_tokens: 50 });
  await page.button('Regenerate').click();
  await page.shows('This answer reached the limit of 50 tokens.');
  assert.equal(await page.answers.count(), 1);
  assert.equal(await page.answerText(), text.slice(0, 50));

  await core.set({ max_tokens: ENDLESS });
  await page.send('Again');
  await page.written(30);
  await page.driver.keyboard.press('Escape');
  await page.finished();
  await page.shows('You stopped this answer.');
});

flow('a long question shows how far it is read', { maxTokens: 20 }, async ({ page }) => {
  const readings = await page.watch('[role=progressbar]');
  // Five tokens each: long enough that a fast machine reports while it reads, short enough for a slow one.
  await page.ask('word '.repeat(1000));
  const counts = (await readings()).filter((words) => /^Reading [\d,]+ of [\d,]+ tokens$/.test(words));
  assert.ok(counts.length > 0, `the page showed ${await readings()}`);
  assert.equal(await page.driver.getByRole('progressbar').count(), 0);
});

flow('a page that is reloaded continues to show the running answer', { maxTokens: ENDLESS }, async ({ core, page }) => {
  await page.send('Go on');
  await page.written(30);
  await page.driver.reload();
  const before = await page.answerText();
  await page.written(before.length + 1);
  await page.stop.click();
  await page.finished();
  const [{ messages }] = await core.conversations();
  assert.equal(await page.answerText(), asSeen(messages[1].text));
});

flow('the second turn does not read the first one again', {}, async ({ page }) => {
  await page.ask('One');
  const first = await page.cached();
  await page.ask('Two');
  const second = await page.cached();
  assert.equal(first.cached, 0);
  // The question and the answer before, all but the letter that was sampled last and never read.
  assert.ok(second.cached >= first.prompt + 199, `${second.cached} of ${second.prompt} came from saved context`);
  // A slow machine saves more than a second, and says so.
  assert.match(await page.statusLine.innerText(), /^Continued/);
});

flow('a chat and its saved context survive a restart', {}, async ({ home, core, page }) => {
  await page.ask('Do you remember?');
  const first = await page.cached();
  await page.ask('And this?');
  const texts = await page.answers.allInnerTexts();
  assert.equal(await core.end('SIGTERM'), 0);
  await page.shows('Lost the connection to Cairn.');

  const again = await home.start(core);
  await page.driver.getByText('Lost the connection to Cairn.').waitFor({ state: 'detached' });
  await page.driver.reload();
  await until('the conversation is back', async () => (await page.answers.count()) === 2);
  assert.deepEqual(await page.answers.allInnerTexts(), texts);
  assert.equal(await page.row('Do you remember\\?').getAttribute('aria-current'), 'true');
  await (await page.inspector()).getByRole('heading', { name: 'Ready to continue' }).waitFor();

  await page.ask('And now?');
  const third = await page.cached();
  assert.ok(third.cached >= first.prompt + 2 * 199, `${third.cached} of ${third.prompt} came from the disk`);
  assert.equal(await again.end('SIGTERM'), 0);
});

flow(
  'an answer cut off by a crash keeps its text and can be regenerated',
  { maxTokens: ENDLESS },
  async ({ home, core, page }) => {
    await page.send('Tell me everything');
    await page.written(150);
    const [{ messages }] = await core.conversations();
    const beginning = messages[1].text.slice(0, 64);
    assert.equal(beginning.length, 64);
    await until('the beginning of the answer is stored', () => home.hasStored(beginning));
    await core.end('SIGKILL');

    const again = await home.start(core);
    await page.driver.reload();
    await page.shows('Cairn quit before this answer was finished. Let it go on, or have it written again.');
    const text = await page.answerText();
    assert.ok(text.startsWith(asSeen(beginning)), `only ${text.length} letters are left`);

    await again.set({ temperature: 0, max_tokens: 400 });
    await page.button('Regenerate').click();
    await page.shows('This answer reached the limit of 400 tokens.');
    const whole = await page.answerText();
    // The window does not show spaces at the end of an answer.
    const same = text.slice(0, 400).trimEnd();
    assert.equal(whole.slice(0, same.length), same);
    assert.equal(await page.answers.count(), 1);
  },
);

flow(
  'conversations are renamed, deleted, restored and removed for good',
  { maxTokens: 20 },
  async ({ home, core, page }) => {
    await page.ask('First question');
    await page.button('New chat').click();
    await page.ask('Second question');
    await page.choose(page.row('Second question'), 'Rename');
    await page.box('Title').fill('Better name');
    await page.box('Title').press('Enter');
    await page.driver.getByRole('heading', { name: 'Better name' }).waitFor();

    await page.choose(page.row('Better name'), 'Delete');
    // The offer to undo stays while the pointer is on it.
    await page.region('Notifications').getByRole('button', { name: 'Undo' }).hover();
    await page.row('Better name').waitFor({ state: 'detached' });
    assert.equal(await page.row('First question').getAttribute('aria-current'), 'true');
    await page.region('Notifications').getByRole('button', { name: 'Undo' }).click();
    await page.row('Better name').waitFor();
    assert.equal(await page.row('Better name').getAttribute('aria-current'), 'true');
    await until('its messages are back', async () => (await page.questionTexts()).join() === 'Second question');

    await page.row('First question').click();
    await page.row('First question').press('Delete');
    await page.row('First question').waitFor({ state: 'detached' });
    await page.driver.keyboard.press('Control+z');
    await page.row('First question').waitFor();
    await until('its row has the focus', async () => (await page.focused()) === 'First question');
    await page.row('First question').press('Delete');
    await page.row('First question').waitFor({ state: 'detached' });
    await until('its neighbour has the focus', async () => (await page.focused()) === 'Better name');
    await core.end('SIGTERM');
    await home.start(core);
    await page.driver.reload();
    await page.row('Better name').waitFor();
    assert.equal(await page.row('First question').count(), 0);
  },
);

flow('an answer continues while another chat is shown', { maxTokens: ENDLESS }, async ({ core, page }) => {
  await core.set({ max_tokens: 20 });
  await page.ask('Short one');
  await core.set({ max_tokens: ENDLESS });
  await page.button('New chat').click();
  await page.send('Long one');
  await page.written(30);
  await page.row('Short one').click();
  await until('the other one is shown', async () => (await page.questionTexts()).join() === 'Short one');
  assert.equal(await page.button('Send').isVisible(), true);
  await page.row('Long one').click();
  const before = (await page.answerText()).length;
  await page.written(before + 1);
  await page.stop.click();
  await page.finished();
  const long = (await core.conversations()).find(({ conversation }) => conversation.title === 'Long one');
  assert.equal(long.messages[1].status, 'stopped');
  assert.equal(await page.answerText(), asSeen(long.messages[1].text));
});

flow('two chats are answered at once', { maxTokens: ENDLESS }, async ({ core, page }) => {
  await page.send('Left');
  await page.written(1);
  await page.button('New chat').click();
  await page.send('Right');
  await page.written(30);
  await page.row('Left').click();
  await page.written((await page.answerText()).length + 1);
  await page.stop.click();
  await page.finished();
  await page.row('Right').click();
  await page.written((await page.answerText()).length + 1);
  await page.stop.click();
  await page.finished();
  const answers = (await core.conversations()).map(({ messages }) => messages[1]);
  assert.deepEqual(
    answers.map(({ status }) => status),
    ['stopped', 'stopped'],
  );
});

flow('a system prompt is read first and saved', { maxTokens: 20 }, async ({ core, page }) => {
  await page.ask('Hello');
  const without = await page.cached();
  await page.button('System prompt').click();
  await page.box('System prompt').fill('Answer in short sentences.');
  await page.button('Save').click();
  await page.dialog('System prompt').waitFor({ state: 'hidden' });
  await page.ask('Hello');
  const changed = await page.cached();
  assert.ok(changed.cached < without.prompt, 'what follows the changed system prompt must be read again');
  assert.match(await page.statusLine.innerText(), /^Read \d+ tokens again: the system prompt changed$/);

  await page.button('New chat').click();
  await page.button('System prompt').click();
  await page.box('System prompt').fill('Answer in long sentences.');
  await page.button('Save').click();
  await page.dialog('System prompt').waitFor({ state: 'hidden' });
  await page.ask('Hello');
  assert.ok((await page.cached()).prompt > without.prompt + 20);

  await page.driver.reload();
  await page.button('System prompt').click();
  await until(
    'the text is back',
    async () => (await page.box('System prompt').inputValue()) === 'Answer in long sentences.',
  );
  await page.driver.keyboard.press('Escape');
  const [{ conversation }] = await core.conversations();
  assert.equal(conversation.system_prompt, 'Answer in long sentences.');
});

flow(
  'a model is chosen and unloaded, and one that cannot be loaded says why',
  { prepare: (home) => home.addBroken('half-a-model') },
  async ({ page }) => {
    await page.button('Model: tiny-chat').waitFor();
    await page.openPage('Models');
    const broken = page.driver.getByRole('listitem').filter({ hasText: 'half-a-model' });
    assert.match(await broken.innerText(), /It is not complete: it has no \.safetensors file\./);
    assert.equal(await broken.getByRole('button', { name: /^Load/ }).count(), 0);
    await page.button('Unload tiny-chat').click();
    await page.button('Load tiny-chat').waitFor();
    assert.equal(await page.status('engine-state').innerText(), 'No model loaded');
    await page.backToChat();
    await page.button('Model: tiny-chat').click();
    const menu = page.dialog('Models');
    assert.equal(await menu.getByRole('button', { name: /half-a-model/ }).count(), 0);
    await menu.getByRole('button', { name: /tiny-chat/ }).click();
    await page.button('Model: tiny-chat').waitFor();
    await menu.waitFor({ state: 'hidden' });
    await until('the message field has the focus', async () => (await page.focused()) === 'Message');
  },
);

flow('settings apply at once, and a field out of range says what is allowed', {}, async ({ home, core, page }) => {
  await page.openSettings('Generation');
  await page.box('Maximum answer length').fill('7');
  await page.box('Temperature').fill('9');
  await page.box('Temperature').press('Tab');
  await page.shows('Enter a number from 0 to 2.');
  await page.backToChat();
  await until('the core knows', async () => (await core.call({ type: 'bootstrap' })).settings.max_tokens === 7);
  // A token is a character here; spaces at the ends of an answer are not shown.
  const answer = await page.ask('Hello');
  assert.ok(answer.length > 0 && answer.length <= 7, answer);
  await page.shows('This answer reached the limit of 7 tokens.');
  await core.end('SIGTERM');
  const { settings } = await (await home.start(core)).call({ type: 'bootstrap' });
  assert.deepEqual([settings.max_tokens, settings.temperature], [7, 0]);
});

flow(
  'a narrow window has the list in a drawer and nothing sticks out',
  { viewport: { width: 380, height: 640 } },
  async ({ page }) => {
    const sticksOut = () => page.driver.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    const list = page.driver.getByRole('navigation', { name: 'Sidebar' });
    await page.ask('A question that is much longer than this narrow window is wide');
    assert.equal(await sticksOut(), 0);
    assert.equal(await list.isVisible(), false);
    await page.button('Show sidebar').click();
    await list.waitFor();
    assert.equal(await sticksOut(), 0);
    await list.getByRole('button', { name: 'New chat' }).click();
    await list.waitFor({ state: 'hidden' });
    await page.driver.getByRole('heading', { name: 'A conversation keeps its place' }).waitFor();
    assert.equal(await page.message.isVisible(), true);

    // A window that grows has no drawer left to close.
    await page.button('Show sidebar').click();
    await list.waitFor();
    await page.driver.setViewportSize({ width: 1000, height: 640 });
    await page.message.click();
    await page.ask('Wide again');
  },
);

flow(
  'a page without the token, or with a wrong one, says where to find a link',
  { expected: /status of 401/ },
  async ({ core, page }) => {
    await page.driver.goto(new URL('/#token=wrong', core.url).href);
    await page.driver.getByRole('heading', { name: 'This link has expired' }).waitFor();
    await page.driver.goto(core.url.href);
    await page.message.waitFor();
    assert.equal(new URL(page.driver.url()).hash, '', 'the token must not stay in the address bar');
    await page.driver.evaluate(() => sessionStorage.clear());
    await page.driver.reload();
    await page.driver.getByRole('heading', { name: 'This link has expired' }).waitFor();
  },
);

flow(
  'the real starter model knows the capital of France',
  { models: [], maxTokens: 60, prepare: (home) => home.addStarter() },
  async ({ page }) => {
    await page.button('Model: SmolLM2 135M').waitFor();
    assert.match(await page.ask('What is the capital of France?'), /Paris/);
    await page.ask('And what is it known for?');
    assert.match((await page.figures()).Answer, /^\d+ tokens at [\d,.]+ tok\/s$/);
    assert.ok((await page.cached()).cached > 0);
  },
);

const CALL = '{"name": "look_up", "arguments": {"place": "Zürich", "days": [1, 2]}}';
const ANSWER = `<think>
The person asks about the weather. I *look it up*.
</think>

I look it up.

<tool_call>
${CALL}
</tool_call>
<tool_call>
{"name": "look_up", "arguments": {"place": oops}}
</tool_call>

That is **all**.`;

flow(
  'reasoning is folded, tool calls are shown, and all of it is there after a restart',
  { models: [], maxTokens: 1000, prepare: (home) => home.addScripted('thinker', ANSWER) },
  async ({ home, core, page }) => {
    await core.call({ type: 'load_model', name: 'thinker' });
    await page.button('Model: thinker').waitFor();
    await page.ask('What will the weather be?');
    const line = page.answer.getByRole('button', { name: /^Thought for \d+ s$/ });
    assert.equal(await line.getAttribute('aria-expanded'), 'false');
    assert.equal(await page.answer.getByText('look it up').count(), 1);
    const calls = page.answer.getByRole('group', { name: 'Tool call: look_up' });
    assert.equal(await calls.count(), 2);
    assert.match(await calls.first().locator('pre').innerText(), /^\{\n {2}"place": "Zürich",\n {2}"days": \[/);
    await page.shows('Cairn shows tool calls and runs none.');
    await page.shows(/^Malformed: /);
    const shown = await page.answer.innerText();
    assert.doesNotMatch(shown, /think>|tool_call>|<\||\uFFFD/);

    await line.focus();
    const before = await line.boundingBox();
    await page.driver.keyboard.press('Enter');
    assert.equal(await line.getAttribute('aria-expanded'), 'true');
    await page.answer.getByText('The person asks about the weather.').waitFor();
    assert.deepEqual((await line.boundingBox()).y, before.y, 'what is unfolded stays where it is');
    for (const colorScheme of ['light', 'dark']) {
      await page.driver.emulateMedia({ colorScheme });
      assert.deepEqual(await findings(page.driver), [], colorScheme);
    }
    await page.button('Copy reasoning').click();
    await hasCopied(page, 'The person asks about the weather. I *look it up*.');
    await page.button('Copy answer').click();
    await hasCopied(page, 'I look it up.\n\nThat is **all**.');
    await page.driver.keyboard.press('Escape');

    await core.end('SIGTERM');
    await home.start(core);
    await page.driver.reload();
    await page.answer.waitFor();
    assert.equal(await page.answer.innerText(), shown);
  },
);

flow(
  'open reasoning counts its seconds, and a message waits for its end',
  { maxTokens: ENDLESS, prepare: (home) => home.setTemplate('tiny-chat', 'Q<think>{# </think> #}') },
  async ({ page }) => {
    await page.send('Think');
    const line = page.answer.getByRole('button', { name: /^Thinking… \d+ s$/ });
    await line.waitFor();
    await line.click();
    await page.written(30);
    const first = await line.innerText();
    await until('the seconds are counted', async () => (await line.innerText()) !== first);

    await page.message.fill('And then?');
    await page.message.press('Enter');
    const waiting = page.region('Waiting messages');
    await waiting.getByText('And then?').waitFor();
    assert.deepEqual(await findings(page.driver), []);
    await page.driver.reload();
    await waiting.getByText('And then?').waitFor();
    await waiting.getByRole('button', { name: 'Edit this message' }).click();
    assert.equal(await page.message.inputValue(), 'And then?');
    assert.equal(await page.focused(), 'Message');
    await page.message.press('Enter');
    await page.stop.click();
    await page.finished();
    await page.answer.getByRole('button', { name: /^Thought for \d+ s$/ }).waitFor();
    assert.deepEqual(await page.questionTexts(), ['Think']);
    await waiting.getByRole('button', { name: 'Send now' }).click();
    await until('it is sent', async () => (await page.questionTexts()).join() === 'Think,And then?');
    await waiting.waitFor({ state: 'detached' });
    await page.stop.click();
    await page.finished();
  },
);

flow('messages that wait follow the answer one by one', { maxTokens: 2000 }, async ({ page }) => {
  await page.send('One');
  for (const text of ['Two', 'Three']) {
    await page.message.fill(text);
    await page.message.press('Enter');
  }
  await until('all are sent', async () => (await page.questionTexts()).join() === 'One,Two,Three');
  await page.finished();
  assert.equal(await page.answers.count(), 3);
});

flow(
  'an answer that repeats itself is held, goes on and is stopped',
  {
    models: [],
    maxTokens: ENDLESS,
    prepare: (home) => home.addScripted('parrot', 'abcdefghijklmnopq rstuvwxyz,.', { isEndless: true }),
  },
  async ({ core, page }) => {
    await core.set({ holds_loops: true });
    await core.call({ type: 'load_model', name: 'parrot' });
    await page.button('Model: parrot').waitFor();
    await page.send('Say something');
    const choice = page.driver.getByRole('group', { name: 'This answer repeats itself.' });
    await choice.waitFor();
    const first = (await page.answerText()).length;
    assert.deepEqual(await findings(page.driver), []);
    await page.driver.reload();
    await choice.getByRole('button', { name: 'Go on' }).click();
    await page.written(first + 1);
    await until('it is held again', async () => (await choice.count()) === 1);
    await choice.getByRole('button', { name: 'Stop' }).click();
    await page.finished();
    await page.shows('You stopped this answer.');
    assert.ok((await page.answerText()).length > 2 * first);
  },
);

test('a data folder that is in use is refused in one sentence', async (t) => {
  const home = await Home.make(t);
  await home.start();
  const { code, stdout, stderr } = await run(program('cairn'), ['serve', '--ui', '--port', '0'], home.env);
  assert.equal(code, 1);
  assert.equal(stdout, '');
  assert.match(stderr, /^cairn: Cairn is already running with the data folder [^\n]+\n$/);
});
