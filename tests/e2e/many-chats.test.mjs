// Many chats at once: an import that was a mistake is taken back, and rows that are selected by the pointer or by keys are
// moved, archived and deleted together.
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

/** A file with chats of another program, called after their numbers: the first is the newest. */
async function chatsOfOthers(t, count) {
  const folder = await mkdtemp(join(tmpdir(), 'cairn-chats-'));
  t.after(() => rm(folder, { recursive: true }));
  const line = (index) => {
    const messages = [
      { role: 'user', content: `Stone ${index}?` },
      { role: 'assistant', content: `Stone ${index}.` },
    ];
    return JSON.stringify({ title: `Stone ${index}`, created_at: 2_000_000 - index, messages });
  };
  const file = join(folder, 'others.jsonl');
  await writeFile(file, Array.from({ length: count }, (_, index) => line(index)).join('\n'));
  return file;
}

const titles = async (core) => (await core.call({ type: 'bootstrap' })).conversations.map(({ title }) => title);

/** Waits until the core lists so many chats that are not in the archive. */
const lists = (core, count) =>
  until(`${count} chats are listed`, async () => {
    const { conversations } = await core.call({ type: 'bootstrap' });
    return conversations.filter((row) => !row.is_archived).length === count;
  });

let file;
const options = (count) => ({
  maxTokens: 8,
  prepare: async (_home, t) => (file = await chatsOfOthers(t, count)),
});

flow('three thousand chats that were imported by mistake go at once', options(3000), async ({ core, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await page.ask('Mine');
  const mine = await titles(core);
  await page.drop(file);
  await page.shows('Imported 3,000 chats.');
  await page.row('Stone 0').waitFor();
  // What the page does for it, without the time in which it waits for the core.
  await page.driver.evaluate(() => {
    window.longTasks = [];
    new PerformanceObserver((list) =>
      window.longTasks.push(...list.getEntries().map(({ duration }) => duration)),
    ).observe({ type: 'longtask' });
  });
  await page.button('Undo').click();
  await page.shows('Deleted 3,000 chats.');
  await page.row('Stone 0').waitFor({ state: 'detached' });
  assert.deepEqual(await titles(core), mine);
  await page.button('Undo').click();
  await page.row('Stone 0').waitFor();
  await lists(core, 3001);
  const longest = Math.max(0, ...(await page.driver.evaluate(() => window.longTasks)));
  assert.ok(longest < 1000, `the page did nothing else for ${longest} ms`);
});

flow(
  'chats are selected by the pointer and deleted, archived and moved together',
  options(8),
  async ({ core, page }) => {
    await page.button('Model: tiny-chat').waitFor();
    await page.drop(file);
    await page.row('Stone 0').click();
    await page.row('Stone 3').click({ modifiers: ['Shift'] });
    await page.row('Stone 1').click({ modifiers: ['ControlOrMeta'] });
    await page.row('Stone 5').click({ modifiers: ['ControlOrMeta'] });
    await page.choose(page.row('Stone 2'), 'Archive 4 chats');
    await page.shows('Archived 4 chats.');
    await lists(core, 4);
    await page.driver.keyboard.press('Control+z');
    await lists(core, 8);

    await page.row('Stone 6').click();
    await page.row('Stone 7').click({ modifiers: ['Shift'] });
    await page.choose(page.row('Stone 7'), 'Move 2 chats to a new folder…');
    await page.dialog('New folder').waitFor();
    await page.driver.keyboard.type('Walls');
    await page.driver.keyboard.press('Enter');
    await page.button('Folder Walls, 2 chats').waitFor();

    await page.row('Stone 0').click();
    await page.row('Stone 4').click({ modifiers: ['Shift'] });
    await page.choose(page.row('Stone 0'), 'Delete 5 chats');
    await page.shows('Deleted 5 chats.');
    await lists(core, 3);
    await page.button('Undo').last().click();
    await page.row('Stone 4').waitFor();
    await lists(core, 8);
  },
);

flow('by keyboard: chats are selected, deleted and brought back', options(8), async ({ core, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await page.drop(file);
  await page.row('Stone 2').focus();
  for (let count = 0; count < 3; count++) await page.driver.keyboard.press('Shift+ArrowDown');
  await until('the last row of them has the focus', async () => (await page.focused()) === 'Stone 5');
  await page.driver.keyboard.press('Escape');
  await page.driver.keyboard.press('Shift+ArrowUp');
  await page.driver.keyboard.press('Delete');
  await page.shows('Deleted 2 chats.');
  await until('the next row has the focus', async () => (await page.focused()) === 'Stone 6');
  await lists(core, 6);
  await page.driver.keyboard.press('Control+a');
  await page.driver.keyboard.press('Backspace');
  await page.shows('No chats yet');
  await lists(core, 0);
  await until('the focus is not lost', async () => (await page.focused()) !== null);
  await page.driver.keyboard.press('Control+z');
  await page.driver.keyboard.press('Control+z');
  await lists(core, 8);
});
