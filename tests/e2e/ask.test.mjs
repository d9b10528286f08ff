// A question about many texts, in Chromium against a real core: written, asked, corrected by keys, calibrated, there after a restart.
import assert from 'node:assert/strict';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

/** What a browser itself logs when a server goes away. */
const GONE =
  /net::ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|SOCKET_NOT_CONNECTED)/;

const NUM_TEXTS = 300;

flow(
  'a question about many texts is answered, corrected and calibrated',
  { expected: GONE },
  async ({ home, core, page }) => {
    await page.openPage('Ask many');
    await page.button('New question').first().click();
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

    await page.driver.getByText('Least certain first', { exact: true }).click();
    await page.driver.locator('tbody tr').first().focus();
    for (let index = 0; index < 10; index++) await page.driver.keyboard.press(String(1 + (index % 2)));
    await page.button('Calibrate').click();
    await page.button('Undo calibration').waitFor();
    const download = page.driver.waitForEvent('download');
    await page.button('Export CSV…').click();
    assert.equal((await download).suggestedFilename(), 'Stones.csv');

    const { port, token } = core;
    await core.end('SIGKILL');
    const again = await home.start({ port, token });
    const { jobs } = await again.call({ type: 'list_jobs' });
    assert.deepEqual(
      jobs.map(({ name, num_answered, num_corrected, state }) => [name, num_answered, num_corrected, state]),
      [['Stones', NUM_TEXTS, 10, 'done']],
    );
  },
);
