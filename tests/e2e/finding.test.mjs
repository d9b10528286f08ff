// Finding chats, and taking them out and in, in Chromium against a real core.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { findings } from './axe.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

/** Two chats of another program; one has two answers to its question. */
const EXPORT = [
  {
    title: 'Which stones make a cairn?',
    conversation_id: 'c1',
    create_time: 1_700_000_000,
    update_time: 1_700_000_100,
    current_node: 'a2',
    mapping: {
      r: { parent: null, message: null },
      q: node('r', 'user', 'Which stones make a cairn?'),
      a1: node('q', 'assistant', 'Flat ones, such as slate.'),
      a2: node('q', 'assistant', `${'Heavy ones. '.repeat(400)}`),
    },
  },
  {
    title: 'Snow in May',
    conversation_id: 'c2',
    create_time: 1_700_000_000,
    update_time: 1_700_000_200,
    mapping: {
      q: node(null, 'user', 'Is there snow in May?'),
      a: node('q', 'assistant', 'Often, above 2,000 metres.'),
    },
  },
];

function node(parent, role, text) {
  const message = { author: { role }, content: { content_type: 'text', parts: [text] }, create_time: 1_700_000_000 };
  return { parent, message };
}

/** Drops a file on the page, as a person does. */
async function drop(driver, name, content) {
  const dataTransfer = await driver.evaluateHandle(
    ([fileName, text]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([text], fileName));
      return transfer;
    },
    [name, content],
  );
  await driver.dispatchEvent('body', 'dragover', { dataTransfer });
  await driver.dispatchEvent('body', 'drop', { dataTransfer });
}

async function imported(page) {
  // The page takes what is dropped on it once it is there.
  await page.button('Model: tiny-chat').waitFor();
  await drop(page.driver, 'conversations.json', JSON.stringify(EXPORT));
  await page.driver.getByText('Imported 2 chats.').waitFor();
  await page.row('Snow in May').waitFor();
}

/** Presses an item of a chat's menu. */
async function choose(page, title, item) {
  await page.row(title).click({ button: 'right' });
  await page.driver.getByRole('menuitem', { name: item, exact: true }).click();
}

flow('a word is found in messages, and the message is shown on its branch', {}, async ({ page }) => {
  const { driver } = page;
  await imported(page);
  await driver.keyboard.press('Control+k');
  await driver.keyboard.type('slat');
  const results = driver.getByRole('group', { name: 'In messages' });
  await results.getByRole('option').waitFor();
  assert.equal(await results.locator('mark').innerText(), 'slate');
  assert.deepEqual(await findings(driver), []);
  await driver.keyboard.press('Enter');
  const message = driver.locator('[data-goal]', { hasText: 'Flat ones, such as slate.' });
  await until('it has the focus', () => message.evaluate((element) => element === document.activeElement));
  assert.equal(await message.getAttribute('data-is-marked'), 'true');
  await until('the mark goes', async () => (await message.getAttribute('data-is-marked')) === null);
  assert.equal(await driver.getByText('Heavy ones.').count(), 0, 'the other branch is not shown');
});

flow('words in a document are found, and the reader opens where they stand', { maxTokens: 8 }, async ({ page }) => {
  const { driver } = page;
  await page.button('Model: tiny-chat').waitFor();
  const filling = 'Each side keeps to what is written here.\n'.repeat(60);
  const lease = `A deposit is paid.\n${filling}The deposit for the keys is 40 crowns.\n${filling}`;
  const [chooser] = await Promise.all([driver.waitForEvent('filechooser'), page.button('Attach files').click()]);
  await chooser.setFiles({ name: 'lease.md', mimeType: 'text/plain', buffer: Buffer.from(lease) });
  await page.button('Remove lease.md').waitFor();
  await page.ask('What do the keys cost?');
  await page.button('New chat').click();
  await driver.keyboard.press('Control+k');
  await driver.keyboard.type('deposit crowns');
  const hit = driver.getByRole('option', { name: /lease\.md: / });
  await hit.waitFor();
  assert.deepEqual(await hit.locator('mark').allInnerTexts(), ['deposit', 'crowns']);
  assert.deepEqual(await findings(driver), []);
  await hit.click();
  const reader = page.dialog('lease.md');
  await reader.getByText('2 of 2', { exact: true }).waitFor();
  const line = await reader.getByRole('region').evaluate((area) => {
    const [mark] = CSS.highlights.get('cairn-found-current') ?? [];
    const [place, around] = [mark.getBoundingClientRect(), area.getBoundingClientRect()];
    return place.top >= around.top && place.bottom <= around.bottom ? mark.toString() : null;
  });
  assert.equal(line, 'deposit', 'the place is in sight');
  await driver.keyboard.press('Escape');
  await page.region('Messages').getByText('What do the keys cost?').waitFor();
  assert.notEqual(await page.focused(), null);
});

flow('the palette finds commands, models and chats with the keyboard alone', {}, async ({ page }) => {
  const { driver } = page;
  await imported(page);
  await driver.keyboard.press('Control+k');
  await driver.keyboard.type('snow');
  await driver
    .getByRole('option', { name: /^Snow in May/ })
    .first()
    .waitFor();
  await driver.keyboard.press('Enter');
  await driver.getByText('Often, above 2,000 metres.').waitFor();
  await driver.keyboard.press('Control+k');
  await driver.keyboard.type('monitor');
  assert.match(await driver.getByRole('option', { selected: true }).innerText(), /^Monitor/);
  await driver.keyboard.press('Enter');
  await driver.getByRole('heading', { name: 'Monitor' }).waitFor();
});

flow('a chat goes to the archive, is still found, and comes back', {}, async ({ page }) => {
  const { driver } = page;
  await imported(page);
  await choose(page, 'Snow in May', 'Archive');
  await page.row('Snow in May').waitFor({ state: 'detached' });
  await driver.keyboard.press('Control+k');
  await driver.keyboard.type('metres');
  await driver.getByRole('group', { name: 'In messages' }).getByRole('option').click();
  await driver.getByText('Often, above 2,000 metres.').waitFor();
  await page.button('Archive (1)').click();
  await choose(page, 'Snow in May', 'Bring back from the archive');
  await page.button('Archive (1)').waitFor({ state: 'detached' });
  await page.row('Snow in May').waitFor();
});

flow(
  'a chat that is begun in a folder has its system prompt; a chat is dragged into it',
  {},
  async ({ core, page }) => {
    const { driver } = page;
    await imported(page);
    await choose(page, 'Snow in May', 'Move to a new folder…');
    const dialog = page.dialog('New folder');
    await dialog.getByLabel('Name').fill('Mountains');
    await dialog.getByLabel('System prompt').fill('Answer as a mountain guide.');
    assert.deepEqual(await findings(driver), []);
    await dialog.getByRole('button', { name: 'Create' }).click();
    await page.button('Folder Mountains, 1 chat').waitFor();

    await page.row('Which stones make a cairn\\?').dragTo(page.button('Folder Mountains, 1 chat'));
    await page.button('Folder Mountains, 2 chats').waitFor();
    await driver.keyboard.press('Control+z');
    await page.button('Folder Mountains, 1 chat').waitFor();

    await page.button('Folder Mountains, 1 chat').hover();
    await page.button('New chat in Mountains').click();
    await page.ask('Where is the pass?');
    const begun = (await core.conversations()).find(({ conversation }) => conversation.title === 'Where is the pass?');
    assert.equal(begun.conversation.system_prompt, 'Answer as a mountain guide.');
    await page.button('Folder Mountains, 2 chats').click({ button: 'right' });
    await driver.getByRole('menuitem', { name: 'Delete folder' }).click();
    await page.button('Folder Mountains, 2 chats').waitFor({ state: 'detached' });
    await page.row('Snow in May').waitFor();
    await driver.getByText('Deleted the folder “Mountains”').waitFor();
    // The import offers one too.
    await page.button('Undo').last().click();
    await page.button('Folder Mountains, 2 chats').waitFor();
    assert.equal(await page.row('Snow in May').count(), 1);
  },
);

flow(
  'a chat is exported, and comes in again after it was deleted',
  { expected: /400 \(Bad Request\)/ },
  async ({ page }) => {
    const { driver } = page;
    await imported(page);
    await choose(page, 'Which stones make a cairn\\?', 'Export chat…');
    const dialog = page.dialog('Export “Which stones make a cairn?”');
    assert.deepEqual(await findings(driver), []);
    const download = driver.waitForEvent('download');
    await dialog.getByRole('button', { name: 'Export' }).click();
    const file = await download;
    assert.equal(file.suggestedFilename(), 'Which stones make a cairn.json');
    const content = await readFile(await file.path(), 'utf8');
    assert.equal(JSON.parse(content).conversations[0].messages.length, 3);
    await choose(page, 'Which stones make a cairn\\?', 'Delete');
    await page.row('Which stones make a cairn\\?').waitFor({ state: 'detached' });
    await drop(driver, 'again.json', content);
    await driver.getByText('Imported 1 chat.').waitFor();
    await page.row('Which stones make a cairn\\?').waitFor();
    // Who chooses a file of chats wants chats; a file that is dropped may be a document.
    await page.button('Search').click();
    await driver.getByRole('combobox').fill('Import chats');
    const command = driver.getByRole('option', { name: 'Import chats…' });
    const [chooser] = await Promise.all([driver.waitForEvent('filechooser'), command.click()]);
    const notes = { name: 'notes.json', mimeType: 'application/json', buffer: Buffer.from('{"a": 1}') };
    await chooser.setFiles(notes);
    await driver.getByText('“notes.json” has no chats that Cairn can read').waitFor();
    await drop(driver, 'notes.json', '{"a": 1}');
    await page.button('Remove notes.json').waitFor();
  },
);
