// The monitor in Chromium against a real core: figures of answers, charts by keyboard and pointer, and the last day after a restart.
import assert from 'node:assert/strict';
import { findings } from './axe.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

const chart = (page, name) => page.driver.getByRole('slider', { name, exact: true });
/** What is told below a chart of the point that was chosen. */
const told = (page, name) => chart(page, name).locator('xpath=following-sibling::p').innerText();

flow(
  'the monitor shows the last minutes, and after a restart the last day',
  { maxTokens: 40 },
  async ({ home, core, page }) => {
    await page.openPage('Monitor');
    await page.shows('Nothing has been read in the last day');
    assert.equal(await page.status('rate').innerText(), '–');
    assert.deepEqual(await findings(page.driver), []);
    await page.backToChat();
    await page.button('Model: tiny-chat').waitFor();
    await page.ask('How are you?');
    await page.ask('And now?');

    await page.openPage('Monitor');
    await page.shows(/^(.* of reading saved in the last day|.* of the prompts in the last day had been read before)$/);
    await chart(page, 'Writing speed: Last 5 minutes').waitFor();
    await chart(page, 'Writing speed: Last 5 minutes').focus();
    assert.match(await told(page, 'Writing speed: Last 5 minutes'), /: [\d,.]+ tok\/s$/);
    await chart(page, 'Memory: Last 5 minutes').hover();
    assert.match(await told(page, 'Memory: Last 5 minutes'), /of it MLX$/);
    const points = await chart(page, 'Memory: Last 5 minutes').getAttribute('aria-valuemax');
    await until('a point comes each second', async () => {
      return Number(await chart(page, 'Memory: Last 5 minutes').getAttribute('aria-valuemax')) > Number(points) + 1;
    });
    await page.driver.getByText('Show as a table').click();
    await page.driver.getByRole('columnheader', { name: 'Writing speed' }).waitFor();
    assert.deepEqual(await findings(page.driver), []);

    const { port, token } = core;
    await core.end('SIGTERM');
    await home.start({ port, token });
    await page.driver.getByRole('radio', { name: 'Last day' }).check({ force: true });
    await chart(page, 'Writing speed: Last day').waitFor();
    const chats = page.driver.getByRole('group', { name: 'Chats in the last day' });
    const cells = await chats.getByRole('row').nth(1).getByRole('cell').allInnerTexts();
    assert.deepEqual([cells[0], cells[3]], ['2', '80']);
    assert.deepEqual(await findings(page.driver), []);
    await chats.getByRole('button', { name: 'How are you?' }).click();
    await page.answer.waitFor();
  },
);
