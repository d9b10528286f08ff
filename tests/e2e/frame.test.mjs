// The frame of the window, in Chromium against a real core: pages, palette, drawers, languages, and what axe finds everywhere.
import assert from 'node:assert/strict';
import { findings } from './axe.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

const PAGES = ['Models', 'Saved context', 'Monitor'];
const SECTIONS = ['General', 'Models', 'Generation', 'Storage', 'Shortcuts', 'Server', 'About'];
const THEMES = ['light', 'dark'];

flow(
  'axe finds nothing serious on any page, in both themes',
  { prepare: (home) => home.addBroken('half-a-model') },
  async ({ core, page }) => {
    const { driver } = page;
    const check = async (what) => {
      for (const colorScheme of THEMES) {
        await driver.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
        assert.deepEqual(await findings(driver), [], `${what}, ${colorScheme}`);
      }
    };
    await check('the empty chat');
    await page.ask('What is a cairn?');
    await until('all of it is saved', async () => (await core.conversations())[0].conversation.cache?.is_whole);
    const [{ conversation }] = await core.conversations();
    await core.call({
      type: 'save_named_cache',
      conversation_id: conversation.id,
      name: 'Stones',
    });
    await page.inspector();
    await page.statusLine.click();
    await check('a chat with its inspector');
    await page.button('System prompt').click();
    await page.dialog('System prompt').waitFor();
    await check('the system prompt');
    await driver.keyboard.press('Escape');
    await page.row('What is a cairn\\?').click({ button: 'right' });
    await driver.getByRole('menu').waitFor();
    await check('the menu of a row');
    await driver.keyboard.press('Escape');
    await driver.keyboard.press('Control+k');
    await page.dialog('Search').waitFor();
    await check('the palette');
    await driver.keyboard.press('Escape');
    for (const name of PAGES) {
      await page.openPage(name);
      if (name === 'Saved context') {
        await driver.getByRole('main').getByText('Details').click();
        await driver.getByRole('treeitem').first().click();
      }
      await check(name);
    }
    for (const section of SECTIONS) {
      await page.openSettings(section);
      await check(`settings: ${section}`);
      await page.backToChat();
    }
    // Where the system dictates the colours, what is selected is still seen.
    await driver.emulateMedia({ forcedColors: 'active' });
    const outline = await page.row('What is a cairn\\?').evaluate((row) => getComputedStyle(row).outlineStyle);
    assert.equal(outline, 'solid');
  },
);

flow('the palette finds chats, models and commands, by keyboard alone', { maxTokens: 20 }, async ({ page }) => {
  const { keyboard } = page.driver;
  await page.ask('About lighthouses');
  await page.driver.keyboard.press('Control+k');
  const palette = page.dialog('Search');
  const field = palette.getByRole('combobox');
  await field.waitFor();

  await keyboard.type('light hou');
  await palette.getByRole('option', { selected: true, name: /About lighthouses/ }).waitFor();
  await field.fill('savd');
  await palette.getByRole('option', { selected: true, name: /New chat: “savd”/ }).waitFor();
  await field.fill('saved con');
  await palette.getByRole('option', { selected: true, name: /Saved context/ }).waitFor();
  await keyboard.press('Enter');
  await page.driver.getByRole('heading', { name: 'Saved context', level: 1 }).waitFor();
  await until('something has the focus', async () => (await page.focused()) !== null);

  await keyboard.press('Control+k');
  await field.fill('About light');
  await keyboard.press('Enter');
  await until('the message field has the focus', async () => (await page.focused()) === 'Message');
  assert.deepEqual(await page.questionTexts(), ['About lighthouses']);

  await keyboard.press('Control+k');
  await keyboard.type('Why do they blink?');
  await keyboard.press('Enter');
  await page.driver.getByRole('heading', { name: 'New chat', level: 1 }).waitFor();
  assert.equal(await page.message.inputValue(), 'Why do they blink?');
});

flow('what was written and not sent is there after a reload, in its chat', { maxTokens: 20 }, async ({ page }) => {
  await page.ask('First');
  await page.message.fill('Half a sent');
  await page.button('New chat').click();
  await page.message.fill('Something else');
  await page.driver.reload();
  await page.message.waitFor();
  assert.equal(await page.message.inputValue(), 'Something else');
  await page.row('First').click();
  assert.equal(await page.message.inputValue(), 'Half a sent');
  await page.send('Whole sentence');
  await page.finished();
  await page.driver.reload();
  await page.message.waitFor();
  assert.equal(await page.message.inputValue(), '');
});

flow('nothing of a private chat is stored, not even its draft', { maxTokens: 20 }, async ({ page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await page.button('New private chat').click();
  await page.driver.getByRole('heading', { name: 'This chat is private' }).waitFor();
  await page.message.fill('A secret thought');
  const stored = await page.driver.evaluate(() => JSON.stringify({ ...localStorage, ...sessionStorage }));
  assert.ok(!stored.includes('A secret thought'), stored);
});

flow(
  'a double click on Delete deletes one chat, and its row leaves its space',
  { maxTokens: 20 },
  async ({ core, page }) => {
    for (const question of ['One', 'Two', 'Three']) {
      await page.button('New chat').click();
      await page.ask(question);
    }
    const below = await page.row('One').boundingBox();
    await page.row('Two').click({ button: 'right' });
    await page.driver.getByRole('menuitem', { name: 'Delete', exact: true }).dblclick();
    await page.row('Two').waitFor({ state: 'detached' });
    // The row goes before the core has answered.
    const left = async () => (await core.call({ type: 'bootstrap' })).conversations.length;
    await until('one chat is deleted', async () => (await left()) === 2);
    assert.equal(await page.box('Title').count(), 0);
    await page.message.hover();
    await until('the space is gone', async () => (await page.row('One').boundingBox()).y < below.y);
    await until('the neighbour has the focus', async () => (await page.focused()) === 'One');
  },
);

flow('messages can be pressed above a dialog', { maxTokens: 20 }, async ({ page }) => {
  await page.ask('One');
  await page.choose(page.row('One'), 'Delete');
  await page.button('System prompt').click();
  await page.dialog('System prompt').getByRole('button', { name: 'Undo' }).click();
  await page.row('One').waitFor();
});

flow(
  'in a narrow window the zones are drawers that take the focus and give it back',
  { viewport: { width: 480, height: 800 }, maxTokens: 20 },
  async ({ page }) => {
    const { keyboard } = page.driver;
    const sticksOut = () => page.driver.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    await page.ask('Narrow');
    await keyboard.press('Control+Alt+s');
    await until('the drawer has the focus', async () => (await page.focused()) === 'Hide sidebar');
    await keyboard.press('Escape');
    await until('the message field has the focus', async () => (await page.focused()) === 'Message');
    await keyboard.press('Control+Alt+i');
    await page.driver.getByRole('complementary', { name: 'This chat' }).waitFor();
    assert.equal(await sticksOut(), 0);
    assert.deepEqual(await findings(page.driver), []);
    await keyboard.press('Escape');
    for (const digit of '123') {
      await keyboard.press(`Control+Alt+${digit}`);
      await page.driver.getByRole('heading', { name: PAGES[digit - 1], level: 1 }).waitFor();
      assert.equal(await sticksOut(), 0, PAGES[digit - 1]);
    }
    await keyboard.press('Control+,');
    await page.driver.getByRole('heading', { name: 'General', level: 1 }).waitFor();
    assert.equal(await sticksOut(), 0);
  },
);

flow('the window speaks German when asked to, and keeps to it', { maxTokens: 20 }, async ({ page }) => {
  const { driver } = page;
  await page.button('Model: tiny-chat').waitFor();
  await page.openSettings('General');
  await driver.getByRole('combobox', { name: 'Language' }).selectOption('Deutsch');
  await driver.getByRole('heading', { name: 'Allgemein', level: 1 }).waitFor();
  await driver.reload();
  await driver.getByRole('heading', { name: 'Ein Gespräch behält seinen Platz' }).waitFor();
  assert.equal(await driver.getAttribute('html', 'lang'), 'de');
  await page.box('Nachricht').fill('Hallo');
  await page.box('Nachricht').press('Enter');
  await driver.getByText(/^\d+ Tokens gelesen$/).waitFor();
  assert.deepEqual(await findings(driver), []);
});
