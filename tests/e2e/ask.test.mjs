// A question about many texts, in Chromium against a real core: written, asked, corrected by keys, calibrated, there after a restart.
import assert from 'node:assert/strict';
import { findings } from './axe.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

const NUM_TEXTS = 300;

flow('a question about many texts is answered, corrected and calibrated', {}, async ({ home, core, page }) => {
  await page.openPage('Ask many');
  await page.button('New question').first().click();
  await until(
    'the form has the focus',
    async () => await page.box('Name').evaluate((box) => box === document.activeElement),
  );
  assert.deepEqual(await findings(page.driver), []);
  const lines = Array.from({ length: NUM_TEXTS }, (_, index) => `Text ${index}`);
  await page.box('Name').fill('Stones');
  await page.box('Texts').fill(lines.join('\n'));
  await page.box('Question').fill('Which stone is it?');
  await page.driver.getByText('One of several').click();
  await page.box('Options, one a line').fill('granite: hard\nbasalt');
  await page.driver.getByTestId('prompt').getByText('A. granite: hard').waitFor();
  await page.button('Ask').click();
  const state = page.driver.getByTestId('job-state');
  await until('every text was asked', async () => (await state.innerText()).startsWith('Done'));

  const sort = async () => {
    await page.driver.getByText('Least certain first', { exact: true }).click();
    const { jobs } = await core.call({ type: 'list_jobs' });
    const least = { type: 'get_job_rows', id: jobs[0].id, order: 'certainty', offset: 0, limit: 1 };
    const { rows } = await core.call(least);
    const first = page.driver.locator('tbody .text').first();
    await until('the least certain come first', async () => (await first.innerText()) === rows[0].text);
  };
  await sort();
  await page.driver.locator('tbody tr').first().focus();
  for (let index = 0; index < 5; index++) await page.driver.keyboard.press(String(1 + (index % 2)));
  // What the core has not heard of yet is lost with the page.
  await until('all five are saved', async () => {
    const { jobs } = await core.call({ type: 'list_jobs' });
    const asked = { type: 'get_job_rows', id: jobs[0].id, order: 'certainty', offset: 0, limit: 5 };
    const { rows } = await core.call(asked);
    return rows.every(({ correction }) => correction !== null);
  });
  await page.driver.reload();
  await page.openPage('Ask many');
  await page.driver.getByRole('button', { name: /^Stones/ }).click();
  await sort();
  await page.driver.locator('tbody tr').nth(5).focus();
  for (let index = 5; index < 10; index++) await page.driver.keyboard.press(String(1 + (index % 2)));
  await page.button('Calibrate').click();
  await page.button('Undo calibration').waitFor();
  assert.deepEqual(await findings(page.driver), []);
  const download = page.driver.waitForEvent('download');
  await page.button('Export CSV…').click();
  assert.equal((await download).suggestedFilename(), 'Stones.csv');
  assert.notEqual(await page.focused(), null);
  await page.button('All questions').click();
  await until('the list has the focus', async () => (await page.focused())?.startsWith('Stones'));

  const { port, token } = core;
  await core.end('SIGKILL');
  const again = await home.start({ port, token });
  const { jobs } = await again.call({ type: 'list_jobs' });
  assert.deepEqual(
    jobs.map(({ name, num_answered, num_corrected, state }) => [name, num_answered, num_corrected, state]),
    [['Stones', NUM_TEXTS, 10, 'done']],
  );
});

flow('chats that a search finds are the texts of a question', { maxTokens: 4 }, async ({ core, page }) => {
  for (const text of ['Is granite hard?', 'Is basalt hard?', 'Is grass green?']) {
    await page.button('New chat').click();
    await page.ask(text);
  }
  await page.openPage('Ask many');
  await page.button('New question').first().click();
  await page.driver.getByText('Your chats', { exact: true }).click();
  await page.driver.getByRole('searchbox').fill('HARD');
  await page.button('Choose all 2').click();
  await page.driver.getByText('Last question', { exact: true }).click();
  await page.box('Question').fill('Is it about a stone?');
  assert.deepEqual(await findings(page.driver), []);
  await page.shows('2 texts, answered by tiny-chat');
  await page.button('Ask').click();
  const state = page.driver.getByTestId('job-state');
  await until('every chat was asked about', async () => (await state.innerText()).startsWith('Done'));
  const { jobs } = await core.call({ type: 'list_jobs' });
  const { rows } = await core.call({
    type: 'get_job_rows',
    id: jobs[0].id,
    order: 'position',
    offset: 0,
    limit: 9,
  });
  assert.deepEqual(
    rows.map(({ text }) => text),
    ['Is basalt hard?', 'Is granite hard?'],
  );
});
