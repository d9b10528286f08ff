// Cairn with the keyboard alone, in Chromium against a real core: no step uses a pointer, and after none of them has the page itself the
// focus, where the next key would do nothing.
import assert from 'node:assert/strict';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

/** Keys in a page. */
class Keyboard {
  constructor(page) {
    this.page = page;
    this.driver = page.driver;
  }

  /** Presses a key, and waits until something has the focus again. */
  async press(key, count = 1) {
    for (let index = 0; index < count; index++) {
      await this.driver.keyboard.press(key);
      // Behind the last thing of a page comes the browser itself, and then the first.
      if (key === 'Tab' && (await this.page.focused()) === null) await this.driver.keyboard.press(key);
      await until(`something has the focus after ${key}`, async () => (await this.page.focused()) !== null, 20_000);
    }
  }

  type(text) {
    return this.driver.keyboard.type(text);
  }

  /** Goes on by Tab until this has the focus. */
  async reach(target) {
    await target.first().waitFor();
    for (let count = 0; !(await this.isActive(target)); count++) {
      assert.ok(count < 200, `${target} is not reached by Tab; ${await this.page.focused()} has the focus`);
      await this.press('Tab');
    }
  }

  /** Goes to something and presses it. */
  async use(target, key = 'Enter') {
    await this.reach(target);
    await this.press(key);
  }

  /** Runs a command by its name in the palette. */
  async command(name) {
    await this.press('Control+k');
    await this.page.dialog('Search').waitFor();
    await this.type(name);
    await this.page.dialog('Search').getByRole('option', { selected: true }).filter({ hasText: name }).waitFor();
    await this.press('Enter');
  }

  isActive(target) {
    return target.first().evaluate((element) => element === document.activeElement);
  }

  /** Waits until this has the focus. */
  has(target) {
    return until(`${target} has the focus`, () => this.isActive(target), 20_000);
  }

  /** Whether this has the focus, now or soon. */
  async isAt(name) {
    await until(`“${name}” has the focus`, async () => ((await this.page.focused()) ?? '').includes(name), 20_000);
  }
}

const begin = async (page) => {
  await page.button('Model: tiny-chat').waitFor();
  return new Keyboard(page);
};

flow('by keyboard: personas and folders are made, used and deleted', { maxTokens: 8 }, async ({ page }) => {
  const keys = await begin(page);
  await keys.command('New persona…');
  await page.dialog('New persona').waitFor();
  await keys.isAt('');
  await keys.type('Mason');
  await keys.reach(page.dialog('New persona').getByRole('textbox', { name: 'System prompt' }));
  await keys.type('You build walls.');
  await keys.use(page.dialog('New persona').getByRole('button', { name: 'Create' }));
  await page.dialog('New persona').waitFor({ state: 'detached' });
  await keys.use(page.button('Mason'));
  await page.driver.getByRole('heading', { name: 'A chat with Mason' }).waitFor();
  await keys.isAt('Message');
  await keys.type('How?');
  await keys.press('Enter');
  await page.finished();

  await keys.reach(page.button('Mason'));
  await keys.press('Shift+F10');
  await page.driver.getByRole('menu').waitFor();
  await keys.press('ArrowDown');
  await keys.press('Escape');
  await keys.isAt('Mason');
  await keys.press('Shift+F10');
  await page.driver.getByRole('menu').waitFor();
  await keys.press('End');
  await keys.press('Enter');
  await page.shows('Deleted the persona “Mason”');
  await keys.use(page.button('Undo'));
  await page.button('Mason').waitFor();

  await keys.command('New folder…');
  await page.dialog('New folder').waitFor();
  await keys.type('Walls');
  await keys.press('Enter');
  await page.dialog('New folder').waitFor({ state: 'detached' });
  const folder = page.driver.getByRole('navigation').getByRole('button', { name: /Walls/ });
  await keys.reach(folder);
  await keys.press('Shift+F10');
  await page.driver.getByRole('menu').waitFor();
  await keys.press('End');
  await keys.press('Enter');
  await page.shows('Deleted the folder “Walls”');
  await keys.press('Tab');
});

flow('by keyboard: a chat is renamed, deleted and brought back', { maxTokens: 8 }, async ({ page }) => {
  const keys = await begin(page);
  for (const text of ['First', 'Second', 'Third']) {
    await keys.press('Control+n');
    await keys.isAt('Message');
    await keys.type(text);
    await keys.press('Enter');
    await page.finished();
  }
  await keys.reach(page.row('Third'));
  await keys.press('ArrowDown');
  await keys.isAt('Second');
  await keys.press('F2');
  await keys.type('Another');
  await keys.press('Enter');
  await keys.isAt('Another');
  await keys.press('Delete');
  await page.shows('Deleted “Another”');
  await keys.press('ArrowDown');
  await keys.press('Delete');
  await page.shows('Deleted “First”');
  await keys.press('Delete');
  await page.driver.getByText('No chats yet').waitFor();
  await keys.press('Tab');
  // The message is reached, too.
  await keys.use(page.button('Undo').last());
  await until('one is back', async () => (await page.row('(First|Another|Third)').count()) > 0);
});

flow('by keyboard: parameters and presets of a chat', { maxTokens: 8 }, async ({ page }) => {
  const keys = await begin(page);
  await keys.type('Hello');
  await keys.press('Enter');
  await page.finished();
  await keys.press('Control+Alt+i');
  const inspector = page.driver.getByRole('complementary', { name: 'This chat', exact: true });
  await keys.reach(inspector.getByRole('textbox', { name: 'Temperature' }));
  await keys.press('Control+a');
  await keys.type('1.5');
  await keys.press('Tab');
  await page.shows('From this chat');
  await keys.use(inspector.getByRole('button', { name: 'Save as preset…' }));
  await keys.type('Bold');
  await keys.press('Enter');
  const preset = inspector.getByRole('button', { name: /Bold/, pressed: true });
  await preset.waitFor();
  await keys.reach(preset);
  await keys.press('Shift+F10');
  await page.driver.getByRole('menu').waitFor();
  await keys.press('End');
  await keys.press('Enter');
  await page.shows('Deleted the preset “Bold”');
  await keys.use(inspector.getByRole('button', { name: /^Reset/ }).first());
  await until('the value is the app’s', async () => (await inspector.getByText('From this chat').count()) === 0);
  await keys.has(inspector.getByRole('textbox', { name: 'Temperature' }));

  await keys.use(inspector.getByRole('region', { name: 'Saved context of this chat' }).locator('summary').first());
  await keys.use(inspector.getByRole('button', { name: 'Delete saved context…' }));
  await keys.isAt('Cancel');
  await keys.press('Escape');
  await keys.isAt('Delete saved context');
  await keys.press('Enter');
  await keys.press('Tab');
  await keys.press('Enter');
  await page.shows('Deleted the saved context');
  await keys.press('Control+Alt+i');
  await inspector.waitFor({ state: 'detached' });
});

flow('by keyboard: documents are attached, read and taken away', { maxTokens: 8 }, async ({ page }) => {
  const keys = await begin(page);
  const files = ['one.txt', 'two.txt'].map((name) => ({
    name,
    mimeType: 'text/plain',
    buffer: Buffer.from('Stone. '.repeat(40)),
  }));
  const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), keys.use(page.button('Attach files'))]);
  await chooser.setFiles(files);
  const chip = page.region('Documents').getByRole('button', { name: /^one\.txt.*open$/ });
  await keys.use(chip);
  await page.dialog('one.txt').waitFor();
  await keys.press('Escape');
  await page.dialog('one.txt').waitFor({ state: 'detached' });
  await keys.isAt('one.txt');
  for (const name of ['one.txt', 'two.txt']) {
    await keys.use(page.region('Documents').getByRole('button', { name: `Remove ${name}` }));
    await page.shows(`Removed “${name}”`);
  }
  await keys.press('Tab');
});

flow(
  'by keyboard: two answers are compared, and how likely one was is looked at',
  { maxTokens: 8 },
  async ({ home, core, page }) => {
    await home.addTinyModel('tiny-other', 'tiny-chat');
    await core.call({ type: 'list_models' });
    const keys = await begin(page);
    await keys.type('Hello');
    await keys.press('Enter');
    await page.finished();
    await keys.press('Control+Shift+m');
    await page.region('Compare').waitFor();
    await keys.press('Escape');
    await page.region('Compare').waitFor({ state: 'detached' });
    await keys.press('Control+Shift+m');
    await keys.use(page.button('Ask both'));
    await page.button('Compare again').and(page.driver.locator(':enabled')).waitFor();
    await keys.use(
      page
        .region('Compare')
        .getByRole('button', { name: /^Go on with this one/ })
        .last(),
    );
    await keys.isAt('Message');

    await keys.press('Control+Alt+p');
    await page.driver.getByRole('complementary', { name: 'Probability' }).getByText('Whole answer').waitFor();
    await keys.press('ArrowRight', 3);
    await keys.press('ArrowDown');
    await keys.press('Escape');
    await page.driver.getByRole('complementary', { name: 'Probability' }).waitFor({ state: 'detached' });
    await keys.press('Tab');
  },
);

flow('by keyboard: every page, and a question about many texts', { maxTokens: 8 }, async ({ page }) => {
  const keys = await begin(page);
  const heading = (name) => page.driver.getByRole('heading', { name, level: 1, exact: true }).waitFor();
  for (const [key, name] of [
    ['1', 'Models'],
    ['2', 'Saved context'],
    ['3', 'Monitor'],
    ['4', 'Ask many'],
  ]) {
    await keys.press(`Control+Alt+${key}`);
    await heading(name);
    await keys.press('Tab');
  }
  await keys.use(page.button('New question').last());
  await keys.reach(page.box('Texts'));
  await keys.type('One\nTwo');
  await keys.reach(page.box('Question'));
  await keys.type('Is it a stone?');
  await keys.use(page.button('Ask'));
  const state = page.driver.getByTestId('job-state');
  await until('every text was asked', async () => (await state.innerText()).startsWith('Done'));
  await keys.use(page.button('All questions'));
  await keys.use(page.driver.getByRole('button', { name: /^Delete/ }));
  await page.button('Undo').waitFor();
  await keys.press('Tab');
  await keys.press('Escape');
  await keys.isAt('Message');
});
