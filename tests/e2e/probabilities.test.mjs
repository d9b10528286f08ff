// How likely the tokens of an answer were, as a person looks at it and branches from another token.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { findings } from './axe.mjs';
import { target } from './core.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

const WIDE = { width: 1240, height: 800 };
const NARROW = { width: 480, height: 800 };

const tokens = (page) => page.driver.getByRole('listbox', { name: 'Tokens of this answer' });
const current = (page) => tokens(page).getByRole('option', { selected: true });

/** Opens the view of the last answer by its button. */
async function open(page) {
  await page.answer.getByRole('button', { name: 'Probability' }).click();
  await tokens(page).waitFor();
  await until('the tokens have the focus', async () => (await page.focused()) === 'Tokens of this answer');
}

flow(
  'an answer is walked token by token, and another version goes on from another token',
  { maxTokens: 40, viewport: WIDE },
  async ({ home, core, page }) => {
    await page.ask('Tell me about stones');
    const first = await page.answerText();
    await open(page);
    const all = await tokens(page).getByRole('option').allTextContents();
    assert.equal(all.length, 40);
    assert.equal(all.join('').trim(), first.trim());
    for (const colorScheme of ['light', 'dark']) {
      await page.driver.emulateMedia({ colorScheme });
      assert.deepEqual(await findings(page.driver), [], colorScheme);
      await page.driver.screenshot({ path: join(target, 'e2e', `probability-${colorScheme}.png`) });
    }
    await page.driver.setViewportSize(NARROW);
    for (const colorScheme of ['light', 'dark']) {
      await page.driver.emulateMedia({ colorScheme });
      assert.deepEqual(await findings(page.driver), [], `narrow, ${colorScheme}`);
      await page.driver.screenshot({ path: join(target, 'e2e', `probability-narrow-${colorScheme}.png`) });
    }
    await page.driver.emulateMedia({ colorScheme: 'light', forcedColors: 'active' });
    await page.driver.setViewportSize(WIDE);
    await page.driver.screenshot({ path: join(target, 'e2e', 'probability-forced.png') });
    await page.driver.emulateMedia({ forcedColors: 'none' });

    await page.driver.keyboard.press('Home');
    for (let step = 0; step < 5; step++) await page.driver.keyboard.press('ArrowRight');
    assert.match(await current(page).getAttribute('aria-label'), /, 7 alternatives$/);
    const panel = page.driver.getByRole('complementary', { name: 'Probability' });
    const others = panel.getByRole('button', { name: /^Branch with/ });
    assert.equal(await others.count(), 7);
    await page.driver.keyboard.press('ArrowDown');
    await page.driver.keyboard.press('ArrowDown');
    await page.driver.keyboard.press('Enter');
    await page.answer.getByText('2/2').waitFor();
    await page.finished();
    assert.equal(await page.focused(), 'Message');
    const second = await page.answerText();
    assert.equal(second.slice(0, 4), first.slice(0, 4));
    assert.notEqual(second, first);

    await core.end('SIGTERM');
    await home.start(core);
    await page.driver.reload();
    await until('the branch is shown', async () => (await page.answerText()) === second);
    await page.answer.getByRole('button', { name: 'Previous version' }).click();
    await until('the old version is there', async () => (await page.answerText()) === first);
  },
);

flow(
  'the view closes by Escape, opens by its shortcut, and says what is missing',
  { models: ['tiny-chat'], maxTokens: 12, viewport: WIDE },
  async ({ home, core, page }) => {
    await home.addTinyModel('tiny-other', 'tiny-chat');
    await page.ask('One');
    await open(page);
    await page.driver.keyboard.press('Escape');
    assert.equal(await tokens(page).count(), 0);
    await until('the button has the focus', async () => (await page.focused()) === 'Probability');
    await page.driver.keyboard.press('Control+Alt+p');
    await tokens(page).waitFor();
    // By the pointer.
    await tokens(page).getByRole('option').nth(3).click();
    assert.equal(await current(page).getAttribute('id'), 'token-3');
    await page.driver.keyboard.press('Escape');

    await core.call({ type: 'unload_model' });
    await page.answer.getByRole('button', { name: 'Probability' }).click();
    await page.shows('This answer was written by tiny-chat, which is not loaded.');
    assert.deepEqual(await findings(page.driver), []);
    await page.driver.screenshot({ path: join(target, 'e2e', 'probability-not-loaded.png') });
    await page.button('Load tiny-chat').click();
    await tokens(page).waitFor();
    await page.driver.keyboard.press('Escape');
  },
);
