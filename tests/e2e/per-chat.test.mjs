// What a chat has of its own, in Chromium against a real core: its context, parameters, presets and personas.
import assert from 'node:assert/strict';
import { findings } from './axe.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

const MODEL = 'tiny-chat';

/** Lets a chat with the model have so many tokens. */
const limit = (core, value) =>
  core.call({
    type: 'set_setting',
    scope: { type: 'model', name: MODEL },
    key: 'context_length',
    value,
  });

flow(
  'a chat that fills its context warns before, forgets its oldest messages in sight, and reads them again',
  { maxTokens: 16 },
  async ({ core, page }) => {
    const { driver } = page;
    await limit(core, 400);
    const inspector = await page.inspector();
    const warning = driver.getByRole('status').filter({ hasText: 'are left in this chat' });
    for (let number = 1; (await warning.count()) === 0; number++) {
      assert.ok(number < 30, 'the context fills');
      await page.ask(`${number}: stones?`);
      const [{ conversation }] = await core.conversations();
      const { context } = await core.call({ type: 'get_context', of: { type: 'conversation', id: conversation.id } });
      const shown = `${context.used_tokens} of 400 tokens`;
      await until('the gauge follows the answer', async () => (await inspector.innerText()).includes(shown));
    }
    assert.deepEqual(await findings(driver), []);
    const numQuestions = (await page.questionTexts()).length;
    await warning.getByRole('button', { name: 'Forget the oldest messages' }).click();
    await page.shows('Then the oldest messages are forgotten');
    assert.equal(await page.focused(), 'Message');
    // What was chosen for the chat says so in the inspector.
    await until('the choice is the chat’s', async () => (await inspector.innerText()).includes('From this chat'));

    await page.ask(
      'And what is granite made of, where is it found, who carves it, and what is built of it today? '.repeat(2),
    );
    const line = page.region('The model no longer reads what is above.');
    await line.waitFor();
    assert.equal((await page.questionTexts()).length, numQuestions + 1, 'all of it stays in sight');
    assert.ok((await driver.locator('.message.forgotten').count()) > 0);
    for (const colorScheme of ['light', 'dark']) {
      await driver.emulateMedia({ colorScheme });
      assert.deepEqual(await findings(driver), [], colorScheme);
    }
    await page.ask('Thanks.');
    const { cached } = await page.cached();
    assert.ok(cached > 0, 'the next turn continues');

    await driver.reload();
    await line.waitFor();
    await line.getByRole('button', { name: 'Read it again' }).click();
    await line.waitFor({ state: 'detached' });
    assert.equal(await driver.locator('.message.forgotten').count(), 0);
  },
);

flow(
  'parameters are set before the first message, and in the dialog of a new persona',
  { maxTokens: 8 },
  async ({ core, page }) => {
    const { driver } = page;
    await page.button('Model: tiny-chat').waitFor();
    const inspector = await page.inspector();
    const temperature = inspector.getByRole('textbox', { name: 'Temperature', exact: true });
    await temperature.fill('0.3');
    await temperature.press('Tab');
    await inspector.getByRole('button', { name: 'Reset Temperature' }).waitFor();
    for (const colorScheme of ['light', 'dark']) {
      await driver.emulateMedia({ colorScheme });
      assert.deepEqual(await findings(driver), [], colorScheme);
    }
    await page.ask('What is granite?');
    const [{ conversation }] = await core.conversations();
    const scope = { type: 'chat', id: conversation.id };
    const { resolved } = await core.call({ type: 'get_settings', scope });
    assert.deepEqual([resolved.settings.temperature, resolved.from.temperature], [0.3, 'chat']);

    await page.button('New chat').click();
    await until('the new chat has none of it', async () => (await temperature.inputValue()) === '0');
    await driver.keyboard.press('Control+k');
    await driver.keyboard.type('new persona');
    await driver.keyboard.press('Enter');
    const dialog = page.dialog('New persona');
    await dialog.getByLabel('Name').fill('Mason');
    await dialog.getByText('Parameters', { exact: true }).click();
    const own = dialog.getByRole('textbox', { name: 'Temperature', exact: true });
    await own.fill('1.2');
    await own.press('Tab');
    await dialog.getByRole('button', { name: 'Reset Temperature' }).waitFor();
    assert.deepEqual(await findings(driver), []);
    await dialog.getByRole('button', { name: 'Create' }).click();
    await dialog.waitFor({ state: 'detached' });
    const { personas } = await core.call({ type: 'bootstrap' });
    assert.deepEqual(
      personas.map(({ name, values }) => [name, values]),
      [['Mason', { temperature: 1.2 }]],
    );
    await page.region('Personas').getByRole('button', { name: 'Mason' }).click();
    await until('the chat shows what its persona sets', async () => (await temperature.inputValue()) === '1.2');
  },
);

flow(
  'parameters are saved as a preset and a persona, which other chats begin with',
  { maxTokens: 8 },
  async ({ core, page }) => {
    const { driver } = page;
    await page.ask('What is granite?');
    const inspector = await page.inspector();
    const temperature = inspector.getByRole('textbox', {
      name: 'Temperature',
      exact: true,
    });
    await temperature.fill('7');
    await temperature.press('Tab');
    assert.match(await inspector.getByRole('alert').innerText(), /from 0 to 2/);
    await temperature.fill('0.3');
    await temperature.press('Tab');
    await inspector.getByRole('button', { name: 'Reset Temperature' }).waitFor();
    assert.equal(await inspector.getByRole('slider', { name: 'Temperature' }).inputValue(), '0.3');

    await inspector.getByRole('button', { name: 'Save as preset…' }).click();
    await page.box('Name of the preset').fill('Calm');
    await driver.keyboard.press('Enter');
    const preset = inspector.getByRole('button', {
      name: 'Use the preset Calm',
    });
    await preset.and(driver.locator('[aria-pressed=true]')).waitFor();
    assert.deepEqual(await findings(driver), []);
    await inspector.getByRole('button', { name: 'Reset Temperature' }).click();
    await preset.and(driver.locator('[aria-pressed=false]')).waitFor();
    await preset.click();
    await page.shows('This chat uses the values of “Calm”.');
    await page.message.focus();
    const applied = driver.getByRole('listitem').filter({ hasText: 'This chat uses the values of “Calm”.' });
    await applied.getByRole('button', { name: 'Undo', exact: true }).click();
    await preset.and(driver.locator('[aria-pressed=false]')).waitFor();
    await preset.click();
    await preset.and(driver.locator('[aria-pressed=true]')).waitFor();

    await driver.keyboard.press('Control+k');
    await driver.keyboard.type('as a persona');
    await driver.keyboard.press('Enter');
    const dialog = page.dialog('New persona');
    await dialog.getByLabel('Name').fill('Mason');
    await dialog.getByLabel('System prompt').fill('You are a mason who answers in one sentence.');
    assert.deepEqual(await findings(driver), []);
    await driver.keyboard.press('Tab');
    await dialog.getByRole('button', { name: 'Create' }).click();
    await dialog.waitFor({ state: 'detached' });

    const personas = page.region('Personas');
    await personas.getByRole('button', { name: 'Mason' }).click();
    await page.shows('A chat with Mason');
    await page.ask('And what is slate?');
    await inspector.getByText('You are a mason who answers in one sentence.').waitFor();
    await until('the temperature is the persona’s', async () =>
      (await inspector.innerText()).includes('From the persona'),
    );
    const { conversations } = await core.call({ type: 'bootstrap' });
    const chat = conversations.find(({ title }) => title.startsWith('And what'));
    assert.equal(chat.system_prompt, 'You are a mason who answers in one sentence.');

    await page.choose(personas.getByRole('button', { name: 'Mason' }), 'Delete persona');
    await personas.waitFor({ state: 'detached' });
    const told = driver.getByRole('listitem').filter({ hasText: 'Deleted the persona “Mason”' });
    await told.getByRole('button', { name: 'Undo', exact: true }).click();
    await personas.getByRole('button', { name: 'Mason' }).waitFor();
  },
);

flow(
  'how much a model thinks is chosen where the model is, for this chat only',
  {
    maxTokens: 8,
    prepare: (home) =>
      home.setTemplate(
        MODEL,
        "{% for turn in messages %}{{ turn.content }}{% endfor %}{{ 'think' * 9 if enable_thinking | default(true) }}",
      ),
  },
  async ({ core, page }) => {
    const { driver } = page;
    const ask = async () => {
      await page.ask('Why?');
      const [{ conversation }] = await core.conversations();
      const { messages } = await core.call({ type: 'get_conversation', id: conversation.id });
      return messages.at(-1).stats.prompt_tokens;
    };
    const inspector = await page.inspector();
    const thinks = await ask();
    await page.button('New chat').click();
    await page.button(`Model: ${MODEL}`).click();
    const list = page.dialog('Models').getByLabel('Thinking');
    await list.waitFor();
    assert.deepEqual(await list.locator('option').allInnerTexts(), ['Automatic (On)', 'Off', 'On']);
    await list.selectOption('Off');
    assert.deepEqual(await findings(driver), []);
    await driver.keyboard.press('Escape');
    const shown = inspector.getByRole('combobox', { name: 'Thinking' });
    await until('the inspector shows it', async () => (await shown.inputValue()) === 'off');
    assert.ok((await ask()) < thinks, 'its prompt says so');
    await driver.reload();
    await until('it is kept', async () => (await shown.inputValue()) === 'off');
    await shown.selectOption('On');
    await page.button(`Model: ${MODEL}`).click();
    await until('the menu shows it', async () => (await list.inputValue()) === 'on');
  },
);
