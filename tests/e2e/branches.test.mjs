// The tree of a chat as a person uses it: versions, branches, answers that go on, and deletions with undo.
import assert from 'node:assert/strict';
import { findings } from './axe.mjs';
import { ENDLESS, flow } from './flow.mjs';
import { until } from './until.mjs';

const questions = (page) => page.region('Messages').getByRole('article', { name: 'You' });
const pager = (message) => message.getByRole('group', { name: /^Version/ });
const inLast = (messages, name) => messages.last().getByRole('button', { name, exact: true });

/** Waits until the questions on screen are these. */
async function asks(page, ...texts) {
  await until(`${texts} are shown`, async () => (await page.questionTexts()).join() === texts.join());
}

flow('a message is edited, and both versions keep their place', { maxTokens: 30 }, async ({ home, core, page }) => {
  await page.ask('Tell me about stones');
  await page.ask('And about the old walls on the hill?');
  const first = await page.answerText();
  await questions(page).last().hover();
  await inLast(questions(page), 'Edit').click();
  const field = page.box('Your message');
  assert.equal(await field.inputValue(), 'And about the old walls on the hill?');
  assert.deepEqual(await findings(page.driver), []);
  await field.press('Escape');
  assert.equal(await page.focused(), 'Edit');
  await page.driver.keyboard.press('Enter');
  await field.fill('And about the new walls in the town?');
  await field.press('Enter');
  await asks(page, 'Tell me about stones', 'And about the new walls in the town?');
  await page.finished();
  const second = await page.answerText();
  assert.equal(await page.focused(), 'Message');
  assert.ok((await page.cached()).cached > 0);

  const versions = pager(page.region('Messages'));
  await versions.getByText('2/2').waitFor();
  const before = await versions.boundingBox();
  await versions.getByRole('button', { name: 'Previous version' }).click();
  await asks(page, 'Tell me about stones', 'And about the old walls on the hill?');
  await versions.getByText('1/2').waitFor();
  assert.equal(await page.answerText(), first);
  assert.ok(Math.abs((await versions.boundingBox()).y - before.y) < 2, 'what is pressed stays');
  await until('the arrow that is left has the focus', async () => (await page.focused()) === 'Next version');
  for (const colorScheme of ['light', 'dark']) {
    await page.driver.emulateMedia({ colorScheme });
    assert.deepEqual(await findings(page.driver), [], colorScheme);
  }

  await core.end('SIGTERM');
  await home.start(core);
  await page.driver.reload();
  await asks(page, 'Tell me about stones', 'And about the old walls on the hill?');
  for (const [arrow, text] of [
    ['ArrowRight', second],
    ['ArrowLeft', first],
  ]) {
    await versions.getByRole('button', { name: arrow === 'ArrowRight' ? 'Next version' : 'Previous version' }).focus();
    await page.driver.keyboard.press(arrow);
    await until('the other answer is shown', async () => (await page.answerText()) === text);
    const read = await page.figures();
    await page.ask('Go on');
    const { cached } = await page.cached();
    assert.ok(cached > 60, `${cached} tokens were saved of ${JSON.stringify(read)}`);
  }
});

flow(
  'answers have versions, and say which model wrote them',
  { models: ['tiny-chat'], maxTokens: 20 },
  async ({ home, page }) => {
    await home.addTinyModel('tiny-other', 'tiny-chat');
    await page.ask('One');
    await page.ask('Two');
    const first = page.answers.first();
    await first.hover();
    await first.getByRole('button', { name: 'Regenerate' }).click();
    await asks(page, 'One');
    await page.finished();
    await pager(page.answer).getByText('2/2').waitFor();
    await page.answer.getByTitle('Written by tiny-chat').waitFor();
    await pager(page.answer).getByRole('button', { name: 'Previous version' }).click();
    await asks(page, 'One', 'Two');
    await page.driver.reload();
    await asks(page, 'One', 'Two');
    await inLast(page.answers, 'Answer with another model').click();
    await page.driver.getByRole('menuitem', { name: 'tiny-other' }).click();
    await page.answer.getByTitle('Written by tiny-other').waitFor();
    await page.finished();
    await page.button('Model: tiny-other').waitFor();
    await pager(page.answer).getByText('2/2').waitFor();
  },
);

flow('an answer that was stopped goes on behind its own text', { maxTokens: ENDLESS }, async ({ core, page }) => {
  await page.send('Go on and on');
  await page.written(100);
  await page.stop.click();
  await page.finished();
  await page.shows('You stopped this answer. Let it go on, or have it written again.');
  const text = await page.answerText();
  await page.button('Continue').click();
  await page.written(text.length + 50);
  assert.equal(await page.focused(), 'Message');
  assert.equal(await inLast(questions(page), 'Edit').isDisabled(), true);
  await page.stop.click();
  await page.finished();
  const more = await page.answerText();
  assert.ok(more.startsWith(text), 'what was written stays');
  assert.equal(await page.answers.count(), 1);

  await core.set({ max_tokens: 40 });
  await page.button('Continue').click();
  await page.shows(/^This answer reached the limit of [\d,]+ tokens\./);
  assert.ok((await page.answerText()).startsWith(more));
});

flow('a chat is branched into a new one', { maxTokens: 20 }, async ({ page }) => {
  await page.ask('One');
  await page.ask('Two');
  await page.answers.first().hover();
  await page.answers.first().getByRole('button', { name: 'Branch into a new chat' }).click();
  await page.row('Branch: One').waitFor();
  await asks(page, 'One');
  assert.equal(await page.focused(), 'Message');
  await page.ask('Three');
  assert.ok((await page.cached()).cached > 20);
  await page.row('One').click();
  await asks(page, 'One', 'Two');
});

flow('deleted messages come back by ⌘Z', { maxTokens: 20 }, async ({ page }) => {
  await page.ask('One');
  await page.ask('Two');
  const remove = async (message, item) => {
    await message.hover();
    await message.getByRole('button', { name: 'More', exact: true }).click();
    await page.driver.getByRole('menuitem', { name: item }).click();
  };
  await remove(questions(page).last(), 'Delete this and all that follows');
  await asks(page, 'One');
  await page.shows('Deleted 2 messages.');
  assert.equal(await page.focused(), 'More');
  await page.driver.keyboard.press('Control+z');
  await asks(page, 'One', 'Two');
  assert.equal(await page.focused(), 'More');

  await remove(page.answer, 'Delete this message');
  await page.shows('This message has no answer.');
  assert.deepEqual(await findings(page.driver), []);
  await page.button('Answer').click();
  await until('both questions have an answer', async () => (await page.answers.count()) === 2);
  await page.finished();
  await remove(questions(page).first(), 'Delete this message');
  await asks(page, 'Two');
  await page.button('Undo').last().click();
  await asks(page, 'One', 'Two');
});
