// Two tabs of one browser on the same chat: what waits in it is shown in both, and sent by one.
import assert from 'node:assert/strict';
import { ENDLESS, flow } from './flow.mjs';
import { Page } from './page.mjs';
import { until } from './until.mjs';

flow(
  'of two tabs the one in which it was written sends what waits',
  { models: ['tiny-chat'], maxTokens: ENDLESS },
  async ({ core, page }) => {
    await page.send('First');
    const [{ id }] = (await core.call({ type: 'bootstrap' })).conversations;
    const other = new Page(await page.driver.context().newPage());
    await other.open(core.url);
    await other.row('First').click();
    await other.answer.waitFor();

    await page.message.fill('Second');
    await page.message.press('Enter');
    await page.shows('Second');
    await other.shows('Second');
    // The answer ends by itself, which both tabs are told.
    await core.set({ max_tokens: 5 });
    await page.message.fill('Third');
    await page.message.press('Enter');
    await page.button('Stop').click();
    await page.button('Send now').click();
    const questions = async () => {
      const { messages } = await core.call({ type: 'get_conversation', id });
      return messages.filter(({ role }) => role === 'user').map(({ text }) => text);
    };
    await until('all are sent', async () => (await questions()).length >= 3);
    await page.finished();
    await until('nothing waits', async () => (await other.driver.getByText('Third').count()) === 1);
    assert.deepEqual(await questions(), ['First', 'Second', 'Third']);
    assert.deepEqual(other.complaints, []);
  },
);
