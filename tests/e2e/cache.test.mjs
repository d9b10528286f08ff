// What a person does with what is kept, in Chromium against a real core: save it under a name, start from it, export, delete, import, go on.
import assert from 'node:assert/strict';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

const NAME = 'Stones';

/** Saves the open conversation under a name. */
async function saveAs(page, name) {
  await page.button('Kept').click();
  await page.button('Save as named…').click();
  await page.box('Name').fill(name);
  await page.button('Save').click();
  await page.shows(`Saved as “${name}”`);
}

async function closeDialog(page) {
  await page.driver.keyboard.press('Escape');
}

async function openCachePage(page) {
  await page.button('What is kept').click();
  await page.driver.getByRole('heading', { name: 'What is kept', level: 1 }).waitFor();
}

flow('a conversation shows what is kept of it, and purging keeps its messages', {}, async ({ core, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await page.ask('What is a cairn?');
  const [{ conversation }] = await core.conversations();
  await until('its place is kept', async () => (await core.conversations())[0].conversation.cache?.is_whole);
  await page.button('Kept').click();
  const kept = page.dialog('What is kept of this conversation');
  await kept
    .getByText(/resumes instantly/i)
    .first()
    .waitFor();
  await kept.getByRole('button', { name: 'Pin', exact: true }).click();
  await until('it is pinned', async () => (await core.conversations())[0].conversation.cache.is_pinned);
  await kept.getByRole('button', { name: 'Purge…' }).click();
  await page.driver.getByRole('button', { name: 'Purge', exact: true }).click();
  await until('nothing is kept', async () => !(await core.conversations())[0].conversation.cache?.kept_tokens);
  await closeDialog(page);
  assert.deepEqual(await page.questionTexts(), ['What is a cairn?']);
  // The next turn reads all of it again, says so, and goes on.
  await page.ask('And then?');
  const after = await core.conversations();
  assert.equal(after[0].conversation.id, conversation.id);
  await page.shows('Why it took longer');
});

flow(
  'a named prompt cache starts conversations, is exported, deleted, imported, and answers the same',
  { maxTokens: 12 },
  async ({ core, home, page }) => {
    await page.button('Model: tiny-chat').waitFor();
    await page.ask('Tell me about stones.');
    await until('its place is kept', async () => (await core.conversations())[0].conversation.cache?.kept_tokens > 0);
    await saveAs(page, NAME);
    await closeDialog(page);

    await page.button('Start from…').click();
    await page.button(`Start from ${NAME}`).first().click();
    await page.driver.getByRole('complementary', { name: 'Beginning' }).waitFor();
    const first = await page.ask('Which are heavy?');
    const figures = await page.answer.locator('summary').innerText();
    const [, cached, total] = figures.match(/(\d+) of (\d+) tokens read from cache/);
    assert.ok(cached > 0 && total - cached < 60, figures);

    await openCachePage(page);
    const [download] = await Promise.all([
      page.driver.waitForEvent('download'),
      page.button(`Export prompt cache ${NAME}`).click(),
    ]);
    const file = join(home.folder, 'stones.safetensors');
    await download.saveAs(file);
    assert.ok((await stat(file)).size > 1000);
    assert.match((await readFile(file)).subarray(0, 4000).toString('latin1'), /cairn_token_ids/);

    await page.button(`Delete prompt cache ${NAME}`).click();
    await page.shows(`Deleted “${NAME}”`);
    await page.button('Undo').click();
    await page.button(`Delete prompt cache ${NAME}`).waitFor();
    await page.button(`Delete prompt cache ${NAME}`).click();

    const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), page.button('Import…').click()]);
    await chooser.setFiles(file);
    const preview = page.dialog('Import a prompt cache');
    await preview.getByText('tiny-chat').first().waitFor();
    await preview.getByRole('checkbox').check();
    await preview.getByRole('button', { name: 'Import', exact: true }).click();
    await page.button('Start a conversation').first().click();
    await page.driver.getByRole('complementary', { name: 'Beginning' }).waitFor();
    await page.shows('imported');
    assert.equal(await page.ask('Which are heavy?'), first);
  },
);

flow('a file that is no prompt cache is refused in a sentence', {}, async ({ home, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await openCachePage(page);
  const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), page.button('Import…').click()]);
  await chooser.setFiles(join(home.modelFolder('tiny-chat'), 'config.json'));
  const refusal = page.dialog('This file cannot be imported');
  await refusal.waitFor();
  await refusal
    .getByText(/config\.json/)
    .first()
    .waitFor();
});
