// What a person does with saved context, in Chromium against a real core: save a starting point, start from it, export, delete, import, continue.
import assert from 'node:assert/strict';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

const NAME = 'Stones';

/** Saves the open chat as a starting point. */
async function saveAs(page, name) {
  await (await page.savedActions()).getByRole('button', { name: 'Save as starting point…' }).click();
  await page.box('Name').fill(name);
  await page.button('Save').click();
  await page.shows(`Saved as “${name}”`);
}

const openSavedContext = (page) => page.openPage('Saved context');

flow('a chat shows what is saved of it, and deleting that leaves its messages', {}, async ({ core, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await page.ask('What is a cairn?');
  const [{ conversation }] = await core.conversations();
  await until('all of it is saved', async () => (await core.conversations())[0].conversation.cache?.is_whole);
  const panel = await page.savedActions();
  await panel.getByRole('heading', { name: 'Ready to continue' }).waitFor();
  await panel.getByRole('button', { name: 'Pin', exact: true }).click();
  await until('it is pinned', async () => (await core.conversations())[0].conversation.cache.is_pinned);
  await panel.getByRole('button', { name: 'Delete saved context…' }).click();
  await panel.getByRole('button', { name: 'Delete', exact: true }).click();
  await until('nothing is saved', async () => !(await core.conversations())[0].conversation.cache?.cached_tokens);
  assert.deepEqual(await page.questionTexts(), ['What is a cairn?']);
  // The next turn reads all of it again, says so, and continues.
  await page.ask('And then?');
  const after = await core.conversations();
  assert.equal(after[0].conversation.id, conversation.id);
  assert.match(await page.statusLine.innerText(), /^Read \d+ tokens again: /);
});

flow(
  'a starting point begins chats, is exported, deleted, imported, and answers the same',
  { maxTokens: 12 },
  async ({ core, home, page }) => {
    await page.button('Model: tiny-chat').waitFor();
    await page.ask('Tell me about stones.');
    await until(
      'its context is saved',
      async () => (await core.conversations())[0].conversation.cache?.cached_tokens > 0,
    );
    await saveAs(page, NAME);

    await page.startingPoint(NAME).click();
    await page.driver.getByRole('complementary', { name: 'Starting point' }).waitFor();
    const first = await page.ask('Which are heavy?');
    const { cached, prompt } = await page.cached();
    assert.ok(cached > 0 && prompt - cached < 60, `${cached} of ${prompt} tokens came from saved context`);

    await openSavedContext(page);
    await page.button(`Export starting point ${NAME}`).click();
    const [download] = await Promise.all([page.driver.waitForEvent('download'), page.button('Export').click()]);
    const file = join(home.folder, 'stones.safetensors');
    await download.saveAs(file);
    assert.ok((await stat(file)).size > 1000);
    assert.match((await readFile(file)).subarray(0, 4000).toString('latin1'), /cairn_token_ids/);

    await page.button(`Delete starting point ${NAME}`).click();
    await page.shows(`Deleted “${NAME}”`);
    await page.button('Undo').click();
    await page.button(`Delete starting point ${NAME}`).waitFor();
    await page.button(`Delete starting point ${NAME}`).click();

    const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), page.button('Import…').click()]);
    await chooser.setFiles(file);
    const preview = page.dialog('Import a prompt cache');
    await preview.getByText('tiny-chat').first().waitFor();
    await preview.getByRole('checkbox').check();
    await preview.getByRole('button', { name: 'Import', exact: true }).click();
    await page.region('Notifications').getByRole('button', { name: 'Start a chat' }).click();
    await page.driver.getByRole('complementary', { name: 'Starting point' }).waitFor();
    await page.shows('imported');
    assert.equal(await page.ask('Which are heavy?'), first);
  },
);

flow('a file that is no prompt cache is refused in a sentence', {}, async ({ home, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await openSavedContext(page);
  const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), page.button('Import…').click()]);
  await chooser.setFiles(join(home.modelFolder('tiny-chat'), 'config.json'));
  const refusal = page.dialog('This file cannot be imported');
  await refusal.waitFor();
  await refusal
    .getByText(/config\.json/)
    .first()
    .waitFor();
});
