// Two answers beside each other, and what a person can do about a reading that had to be done again.
import assert from 'node:assert/strict';
import { findings } from './axe.mjs';
import { ENDLESS, flow } from './flow.mjs';
import { until } from './until.mjs';

const columns = (page) => page.region('Compare').getByRole('article');
const textOf = (column) => column.locator('.markdown').first().innerText();
const grows = async (column, letters) =>
  until(
    `${letters} letters are there`,
    async () => (await column.locator('.markdown').count()) > 0 && (await textOf(column)).length > letters,
  );

flow(
  'a question is answered by two models, and the chat goes on with one of them',
  { models: ['tiny-chat'], maxTokens: ENDLESS },
  async ({ home, core, page }) => {
    await home.addTinyModel('tiny-other', 'tiny-chat');
    await core.call({ type: 'list_models' });
    await page.button('Model: tiny-chat').waitFor();
    await page.message.fill('Which stones are heavy?');
    await page.driver.keyboard.press('Control+Shift+M');
    const compare = page.region('Compare');
    await compare.waitFor();
    assert.equal(await page.box('Your question').inputValue(), 'Which stones are heavy?');
    const hasFocus = () => page.box('Your question').evaluate((field) => field === document.activeElement);
    await until('the question has the focus', hasFocus);
    const choices = compare.getByRole('combobox', { name: 'Model' });
    await choices.first().selectOption('tiny-chat');
    await choices.last().selectOption('tiny-chat');
    assert.ok(await page.button('Ask both').isDisabled(), 'the same twice says nothing');
    await choices.last().selectOption('tiny-other');
    assert.deepEqual(await findings(page.driver), []);
    await page.button('Ask both').click();

    // Both are written at once; each is stopped alone.
    const [first, second] = [columns(page).first(), columns(page).last()];
    await grows(first, 30);
    await grows(second, 30);
    for (const colorScheme of ['light', 'dark']) {
      await page.driver.emulateMedia({ colorScheme });
      assert.deepEqual(await findings(page.driver), [], colorScheme);
    }
    await first.getByRole('button', { name: /^Stop/ }).click();
    await first.and(page.driver.locator('[aria-busy=false]')).waitFor();
    const kept = await textOf(first);
    await grows(second, (await textOf(second)).length);

    // A page that is loaded anew shows both again.
    await page.driver.reload();
    await grows(columns(page).last(), 30);
    assert.equal(await textOf(columns(page).first()), kept);

    await columns(page)
      .last()
      .getByRole('button', { name: /^Go on with this one/ })
      .click();
    await page.message.waitFor();
    assert.equal(await page.focused(), 'Message');
    await page.written((await page.answerText()).length + 1);
    await page.stop.click();
    await page.finished();
    await page.button('Model: tiny-other').waitFor();
    const versions = page.answer.getByRole('group', { name: /^Version/ });
    await versions.getByText('2/2').waitFor();
    await versions.getByRole('button', { name: 'Previous version' }).click();
    await until('the other answer is there', async () => (await page.answerText()) === kept);
    const [{ messages }] = await core.conversations();
    assert.deepEqual(
      messages.map(({ role, model }) => model ?? role),
      ['user', 'tiny-chat'],
    );
  },
);

flow(
  'a second question goes to both sides, and each reads on from its own answer',
  { maxTokens: 24 },
  async ({ home, core, page }) => {
    await home.addTinyModel('tiny-other', 'tiny-chat', { rope_theta: 20_000 });
    await core.call({ type: 'list_models' });
    await page.button('Model: tiny-chat').waitFor();
    await page.message.fill('Which stones are heavy?');
    await page.driver.keyboard.press('Control+Shift+M');
    const choices = page.region('Compare').getByRole('combobox', { name: 'Model' });
    await choices.first().selectOption('tiny-chat');
    await choices.last().selectOption('tiny-other');
    await page.button('Ask both').click();
    const areDone = async () => (await page.region('Compare').locator('article[aria-busy=false]').count()) === 2;
    await until('both are written', areDone);
    const next = page.box('Next question to both');
    await next.fill('And which are light?');
    await until('the next question can be asked', () => page.button('Ask both').isEnabled());
    await next.press('Enter');
    await page.region('Compare').getByText('And which are light?').first().waitFor();
    await until('both are written again', areDone);
    assert.ok(await next.evaluate((field) => field === document.activeElement), 'who asks goes on writing');
    assert.deepEqual(await findings(page.driver), []);
    for (const column of [columns(page).first(), columns(page).last()])
      assert.equal(await column.locator('.markdown').count(), 2, 'both rounds are there');

    await columns(page)
      .last()
      .getByRole('button', { name: /^Go on with this one/ })
      .click();
    await page.message.waitFor();
    const [{ messages }] = await core.conversations();
    assert.deepEqual(
      messages.map(({ role, model }) => model ?? role),
      ['user', 'tiny-other', 'user', 'tiny-other'],
    );
    const [, first, , second] = messages.map(({ stats }) => stats);
    assert.ok(second.cached_tokens + 1 >= first.prompt_tokens + first.generation_tokens, 'nothing was read again');
  },
);

flow('what had to be read again says why, and what prevents it', { maxTokens: 12 }, async ({ core, page }) => {
  const setPrompt = async (text) => {
    await page.button('System prompt').click();
    await page.box('System prompt').fill(text);
    await page.button('Save').click();
    await page.dialog('System prompt').waitFor({ state: 'hidden' });
  };
  await setPrompt('Answer in short sentences.');
  await page.ask('Tell me about stones');
  const { prompt } = await page.cached();
  await setPrompt('Answer in long sentences, and leave nothing out.');
  await page.ask('And more?');
  assert.match(await page.statusLine.innerText(), /^Read \d+ tokens again: the system prompt changed$/);
  const action = page.button('Undo the change of the system prompt');
  await action.waitFor();
  assert.deepEqual(await findings(page.driver), []);
  await action.click();
  await page.shows('The system prompt is as it was before.');
  await action.waitFor({ state: 'hidden' });
  assert.equal(await page.focused(), 'Message');
  const [{ conversation }] = await core.conversations();
  assert.equal(conversation.system_prompt, 'Answer in short sentences.');
  await page.ask('And now?');
  assert.ok((await page.cached()).cached >= prompt, 'what was saved then is used again');
});
