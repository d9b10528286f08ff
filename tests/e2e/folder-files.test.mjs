// Files of a folder in Chromium against a real core: read once, continued by every chat of the folder, changed, kept by chats that have begun.
import assert from 'node:assert/strict';
import { findings } from './axe.mjs';
import { longText } from './files.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

const file = (name, content) => ({ name, mimeType: 'application/octet-stream', buffer: Buffer.from(content) });

async function addFiles(page, files) {
  const add = page.driver.getByRole('dialog').getByRole('button', { name: 'Add files…' });
  const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), add.click()]);
  await chooser.setFiles(files);
}

/** The tokens that the dialog says were read. */
async function read(page) {
  const line = page.region('Files').getByText(/^Read \([\d,]+ tokens\)/);
  await line.waitFor();
  return Number(/\(([\d,]+)/.exec(await line.innerText())[1].replaceAll(',', ''));
}

async function folderMenu(page, entry) {
  await page.button(/^Folder Contracts/).click({ button: 'right' });
  await page.driver.getByRole('menuitem', { name: entry }).click();
}

flow('chats of a folder begin with its files, which are read once', {}, async ({ core, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  const { folder } = await core.call({ type: 'create_folder', name: 'Contracts' });
  await folderMenu(page, 'Edit folder…');
  await addFiles(page, [file('lease.md', longText(6)), file('logo.png', 'x')]);
  const tokens = await read(page);
  assert.match(await page.region('Files').getByRole('alert').innerText(), /“logo.png” isn’t text/);
  assert.deepEqual(await findings(page.driver), []);
  await page.driver.keyboard.press('Escape');

  for (const question of ['Who pays?', 'Until when?']) {
    await folderMenu(page, 'New chat in this folder');
    await page.region('Files of the folder').getByText('Begins with the files of “Contracts”').waitFor();
    await page.ask(question);
    const { cached } = await page.cached();
    // Before them stands only what the template writes.
    assert.ok(cached > tokens && cached - tokens < 64, `${question}: ${cached} saved, the files have ${tokens}`);
    await page
      .region('Files of the folder')
      .getByRole('button', { name: /^lease\.md, .*: open$/ })
      .waitFor();
  }
  assert.deepEqual(await findings(page.driver), []);

  // A file that comes later is for chats that begin later; one that is removed comes back.
  await folderMenu(page, 'Edit folder…');
  await read(page);
  await addFiles(page, [file('rules.md', longText(3))]);
  await until('both are read', async () => (await read(page)) > tokens);
  await page.button('Remove lease.md').click();
  await page.button('Undo').click();
  await page.button('Remove lease.md').waitFor();
  await until('both are read again', async () => (await read(page)) > tokens);
  await page.driver.keyboard.press('Escape');
  await page.ask('And then?');
  const chips = page.region('Files of the folder').getByRole('button');
  assert.equal(await chips.count(), 1, 'the chat keeps what it began with');
  assert.match(await page.statusLine.innerText(), /^Continued/);
  await folderMenu(page, 'New chat in this folder');
  await until('a new chat begins with both', async () => (await chips.count()) === 2);

  // Found by the name of a file.
  const { found } = await core.call({ type: 'search_messages', text: 'lease' });
  assert.deepEqual(
    found.map(({ document }) => document.document.name),
    ['lease.md', 'lease.md'],
  );
  assert.equal((await core.call({ type: 'delete_folder', id: folder.id })).type, 'done');
});

flow(
  'a new folder takes files before it is created, and leaves nothing where it is not',
  {},
  async ({ core, page }) => {
    const { driver } = page;
    await page.button('Model: tiny-chat').waitFor();
    const folders = async () => (await core.call({ type: 'bootstrap' })).folders.map(({ name }) => name);
    const begin = async () => {
      await driver.keyboard.press('Control+k');
      await driver.keyboard.type('New folder');
      await driver.keyboard.press('Enter');
      await page.dialog('New folder').waitFor();
      await addFiles(page, [file('lease.md', longText(3))]);
      await read(page);
    };
    await begin();
    await page.dialog('New folder').getByRole('button', { name: 'Cancel' }).click();
    await until('none is left', async () => (await folders()).length === 0);

    await begin();
    assert.deepEqual(await findings(driver), []);
    await page.box('Name').fill('Contracts');
    await page.dialog('New folder').getByRole('button', { name: 'Create' }).click();
    await until('it has its name', async () => (await folders()).join() === 'Contracts');
    await folderMenu(page, 'New chat in this folder');
    await page.region('Files of the folder').getByText('Begins with the files of “Contracts”').waitFor();
  },
);
