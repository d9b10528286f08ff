// Models that a person has already, in Chromium against a real core: dropped on the window.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { cp, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ENDLESS, flow } from './flow.mjs';
import { writeGguf } from './gguf.mjs';
import { tinyModel } from './hub.mjs';
import { until } from './until.mjs';

const isReady = (page) =>
  until('the model is loaded', async () => (await page.status('engine-state').innerText()) === 'Ready');

flow(
  'a GGUF file that is dropped on the window becomes a model to chat with',
  { models: [], expected: /status of 400/ },
  async ({ home, core, page }) => {
    const file = join(home.folder, 'Tiny Llama.GGUF');
    await writeGguf(file);
    const models = join(home.env.CAIRN_HOME, 'models');
    const copies = async () => [
      ...(existsSync(models) ? await readdir(models) : []),
      ...(await readdir(join(home.env.CAIRN_HOME, 'transfers'))),
    ];
    await page.driver.getByRole('heading', { name: 'Choose a model to start' }).waitFor();

    // The file does not arrive until it is let through.
    const letThrough = await page.holdBack('**/api/models/import');
    await page.drop(file);
    const card = page.driver.getByRole('article', { name: 'Tiny Llama.GGUF', exact: true });
    await card.getByRole('progressbar').waitFor();
    await page.button('Cancel the import of Tiny Llama.GGUF').click();
    await card.waitFor({ state: 'detached' });
    assert.deepEqual(await copies(), [], 'what was cancelled left something');

    letThrough();
    await page.drop(file);
    await page.shows('Imported “Tiny Llama.GGUF”.');
    // It is the only model, so nobody has to choose it.
    await isReady(page);
    await page.send('hello');
    await page.finished();
    const [{ messages }] = await core.conversations();
    assert.equal(messages[1].status, 'complete');
    assert.deepEqual(await copies(), ['Tiny-Llama']);

    await page.drop(file);
    await page.shows(/Tiny-Llama” exists already/);
    const notes = join(home.folder, 'notes.gguf');
    await writeFile(notes, 'no model');
    await page.drop(notes);
    await page.shows('notes.gguf cannot be imported: it is not a GGUF file; choose another.');
    assert.deepEqual(await copies(), ['Tiny-Llama']);
  },
);

flow('what an import has rounded is said, and stays with the model', { models: [] }, async ({ home, page }) => {
  const file = join(home.folder, 'Rounded.gguf');
  await writeGguf(file, { isRounded: true });
  await page.driver.getByRole('heading', { name: 'Choose a model to start' }).waitFor();
  await page.drop(file);
  await page.dialog('Import Rounded.gguf').getByRole('radio', { name: '8 bits' }).waitFor();
  await page.driver.keyboard.press('Enter');
  const words = /1 tensor had to be rounded: the weights differ from the file’s by [\d.]+% on average\./;
  await page.shows(words);
  await isReady(page);
  await page.openPage('Models');
  const row = page.driver.getByRole('listitem').filter({ has: page.driver.getByRole('heading', { name: 'Rounded' }) });
  await row.getByRole('button', { expanded: false }).first().click();
  await row.getByText(words).waitFor();
});

flow(
  'an import that rounds says what each choice takes, and follows the keyboard',
  { models: [] },
  async ({ home, core, page }) => {
    const file = join(home.folder, 'Rounded.gguf');
    await writeGguf(file, { isRounded: true });
    await page.driver.getByRole('heading', { name: 'Choose a model to start' }).waitFor();
    await page.drop(file);
    const dialog = page.dialog('Import Rounded.gguf');
    const radio = (name) => dialog.getByRole('radio', { name });
    await radio(/^8 bits .*recommended/).waitFor();
    await until('the proposed one is chosen', () => radio('8 bits').isChecked());
    for (const name of ['4 bits', '8 bits', '16 bits', '32 bits']) {
      await radio(
        new RegExp(`^${name}.* on the disk · memory .*(differ by about [\\d.]+%|no weight changes)`),
      ).waitFor();
    }
    // Who does not choose has no model.
    await page.driver.keyboard.press('Escape');
    await dialog.waitFor({ state: 'hidden' });
    await page.driver.getByRole('heading', { name: 'Choose a model to start' }).waitFor();
    assert.deepEqual((await core.call({ type: 'list_models' })).models, []);

    await page.drop(file);
    await radio(/^8 bits .*recommended/).waitFor();
    await page.driver.keyboard.press('ArrowUp');
    await until('the one above is chosen', () => radio('4 bits').isChecked());
    await page.driver.keyboard.press('Enter');
    await dialog.waitFor({ state: 'hidden' });
    await isReady(page);
    const [{ facts }] = (await core.call({ type: 'list_models' })).models;
    assert.ok(facts.rounded_weights.relative_error > 0.03, 'four bits change weights by more than eight do');
  },
);

flow('one press loads what was imported a moment ago', { maxTokens: 4 }, async ({ home, page }) => {
  await page.message.waitFor();
  await page.ask('hello');
  await page.openPage('Models');
  const file = join(home.folder, 'dropped.gguf');
  await writeGguf(file);
  // As soon as the button takes a press, which is when the check of the model has ended.
  const pressed = page.driver.evaluate(
    () =>
      new Promise((resolve) => {
        const look = () => {
          const button = document.querySelector('button[aria-label="Load dropped"]');
          if (button === null || button.disabled) return;
          observer.disconnect();
          button.click();
          resolve();
        };
        const observer = new MutationObserver(look);
        observer.observe(document.body, { subtree: true, childList: true, attributes: true });
      }),
  );
  await page.drop(file);
  await pressed;
  await page.button('Unload dropped').waitFor();
  await isReady(page);
  await page.backToChat();
  await page.button('Model: tiny-chat').waitFor();
  await page.button('New chat').click();
  await page.button('Model: dropped').waitFor();
  await page.ask('And now?');
});

flow('a folder that is dropped on a page of a browser is explained', {}, async ({ home, page }) => {
  const folder = join(home.folder, 'mine');
  await cp(tinyModel, folder, { recursive: true });
  await page.message.waitFor();
  await page.drop(folder);
  await page.shows('A folder can be added in the app only. Drop a GGUF file instead.');
});

/** A second model with the same vocabulary that writes other words. */
async function addOther(home) {
  const folder = home.modelFolder('other-chat');
  await cp(home.modelFolder('tiny-chat'), folder, { recursive: true });
  const file = join(folder, 'config.json');
  const config = JSON.parse(await readFile(file, 'utf8'));
  await writeFile(file, JSON.stringify({ ...config, rope_theta: 2 * config.rope_theta }));
}

flow(
  'another model answers while the first one still writes',
  { maxTokens: ENDLESS, prepare: addOther },
  async ({ core, page }) => {
    const choose = async (to) => {
      await page.driver.getByRole('button', { name: /^Model: / }).click();
      await page
        .dialog('Models')
        .getByRole('button', { name: new RegExp(`^${to}`) })
        .click();
      await page.button(`Model: ${to}`).waitFor();
    };
    await choose('tiny-chat');
    await page.send('Left');
    await page.written(20);
    await page.button('New chat').click();
    await choose('other-chat');
    // The first answer would go on for ever, so nothing here can have waited for its end.
    await page.send('Left');
    await page.written(200);
    await page.stop.click();
    await page.finished();
    const other = await page.answerText();

    const first = page.row('Left').last();
    await first.click();
    await page.written((await page.answerText()).length + 200);
    await page.stop.click();
    await page.finished();
    const answers = (await core.conversations()).map(({ messages }) => messages[1]);
    assert.deepEqual(
      answers.map(({ status }) => status),
      ['stopped', 'stopped'],
    );

    // What it wrote is what it writes alone.
    const text = await page.answerText();
    await page.button('New chat').click();
    await choose('tiny-chat');
    await page.send('Left');
    await page.written(text.length);
    await page.stop.click();
    await page.finished();
    assert.ok((await page.answerText()).startsWith(text), 'the first answer was changed by the second');
    assert.ok(!text.startsWith(other.slice(0, 100)), 'the second model is another one');
  },
);
