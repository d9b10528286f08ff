// Five flows as a screen reader tells them, compared with what was read through and found good; see transcript.mjs.
import assert from 'node:assert/strict';
import { findings } from './axe.mjs';
import { ENDLESS, flow } from './flow.mjs';
import { Transcript } from './transcript.mjs';
import { until } from './until.mjs';

const ANSWER = 'Flat stones, laid across the gaps.';
const SCRIPTED = 'mason';
/** A model that gives one answer, whatever is asked. */
const scripted = { models: [], prepare: (home) => home.addScripted(SCRIPTED, ANSWER) };

async function load(core, page) {
  await core.call({ type: 'load_model', name: SCRIPTED });
  await page.button(`Model: ${SCRIPTED}`).waitFor();
  await until('messages can be written', () => page.message.isEnabled());
}

const isReady = (page) =>
  until('the engine is ready', async () => (await page.status('engine-state').innerText()) === 'Ready');
const questions = (page) => page.region('Messages').getByRole('article', { name: 'You' });
const main = (page) => page.driver.getByRole('main');

flow('the first start and the choice of a model, as they are read out', { models: [] }, async ({ home, page }) => {
  const { driver } = page;
  await driver.getByRole('heading', { name: 'Choose a model to start' }).waitFor();
  const transcript = await Transcript.begin(page);
  await transcript.sees('The window, without a model', driver.getByRole('navigation'));
  // Which models are proposed depends on the memory of the machine.
  await page.region('Welcome').getByRole('radio').first().waitFor();
  await transcript.sees('What can be done without one', page.region('Welcome').locator('.actions'));
  await transcript.sees('And besides', page.region('Welcome').locator('.found'));

  // The app notices models by itself too, and the button goes then.
  await page.button('Refresh').focus();
  await home.addTinyModel('tiny-chat');
  await home.addTinyModel('tiny-other', 'tiny-chat');
  await driver.keyboard.press('Enter');
  await until('the next thing to do is to write', async () => (await page.focused()) === 'Message');
  // The one that a message would load.
  await page.button('Model: tiny-chat').focus();
  await driver.keyboard.press('Enter');
  const menu = page.dialog('Models');
  await menu.getByRole('button', { name: /^tiny-other.*Fits/ }).waitFor();
  await until('the menu has the focus', () => menu.evaluate((element) => element.contains(document.activeElement)));
  await transcript.sees('The models to choose from', menu);
  await menu.getByRole('button', { name: /^tiny-chat/ }).focus();
  await driver.keyboard.press('Enter');
  await transcript.hears(/is ready/);
  await isReady(page);
  await until('the field has the focus', async () => (await page.focused()) === 'Message');
  await transcript.sees('The model is loaded', main(page));
  await page.openPage('Models');
  const panel = driver.getByRole('tabpanel');
  await panel
    .getByRole('button', { name: /fits well/ })
    .nth(1)
    .waitFor();
  await transcript.sees('The page of the models', panel);
  await transcript.check('first-start');
});

flow('asking and stopping, as they are read out', { maxTokens: ENDLESS }, async ({ core, page }) => {
  const { driver } = page;
  await page.button('Model: tiny-chat').waitFor();
  const transcript = await Transcript.begin(page);
  await page.send('Which stones?');
  await transcript.hears(/being written/);
  await page.written(30);
  await transcript.sees('The field while the answer is written', driver.locator('form'));
  await page.stop.focus();
  await driver.keyboard.press('Enter');
  await page.finished();
  await transcript.hears(/You stopped/);
  assert.equal(await page.focused(), 'Message');
  await transcript.sees('What can be done with the answer', page.answer.locator('.answer-note'));
  await transcript.sees('And beside it', page.answer.locator('footer'));
  await core.set({ max_tokens: 20 });
  await page.ask('And then?');
  await transcript.hears(/^Answer finished\..* This answer reached the limit/);
  await isReady(page);
  await transcript.sees('The list of chats', driver.getByRole('navigation'));
  await transcript.check('asking');
});

flow('versions of a message, as they are read out', scripted, async ({ core, page }) => {
  const { driver } = page;
  await load(core, page);
  const transcript = await Transcript.begin(page);
  await page.ask('Which stones?');
  await transcript.hears(/^Answer finished/);
  await questions(page).getByRole('button', { name: 'Edit', exact: true }).focus();
  await driver.keyboard.press('Enter');
  await until('the field has the focus', async () => (await page.focused()) === 'Your message');
  await transcript.sees('A message is edited', questions(page));
  await driver.keyboard.press('End');
  await driver.keyboard.type(' And how?');
  await driver.keyboard.press('Enter');
  await questions(page).getByRole('group', { name: 'Version 2 of 2' }).waitFor();
  await page.finished();
  await transcript.hears(/^Answer finished/);
  await transcript.sees('Both versions are there', page.region('Messages'));
  await page.button('Previous version').first().focus();
  await driver.keyboard.press('Enter');
  await transcript.hears(/Version 1 of 2/);
  await until('the other arrow has the focus', async () => (await page.focused()) === 'Next version');
  await transcript.sees('The first version', questions(page));
  assert.deepEqual(await findings(driver), []);
  await transcript.check('versions');
});

flow('searching, as it is read out', scripted, async ({ core, page }) => {
  const { driver } = page;
  await load(core, page);
  for (const question of ['Which stones?', 'Which mortar?']) {
    await page.button('New chat').first().click();
    await page.ask(question);
  }
  const transcript = await Transcript.begin(page);
  await driver.keyboard.press('Control+k');
  await driver.keyboard.type('across');
  const found = driver.getByRole('group', { name: 'In messages' }).getByRole('option');
  await until('both are found', async () => (await found.count()) === 2);
  await transcript.hears(/^3 results$/);
  await driver.keyboard.press('ArrowDown');
  await transcript.sees('What was found', page.dialog('Search'));
  await driver.keyboard.press('Enter');
  await page.driver.getByRole('heading', { name: 'Which stones?', level: 1 }).waitFor();
  const message = page.answer;
  await until('the message has the focus', () => message.evaluate((element) => element === document.activeElement));
  await transcript.sees('The message that was found', main(page).getByRole('heading', { level: 1 }));
  await driver.keyboard.press('Control+f');
  await until('the field has the focus', async () => (await page.focused()) === 'Find in this chat');
  await driver.keyboard.type('stones');
  await transcript.hears(/^1 of 2$/);
  await transcript.sees('Finding in the chat', driver.getByRole('search', { name: 'Find' }));
  await driver.keyboard.press('Escape');
  await transcript.check('searching');
});

flow(
  'documents and what a chat has of its own, as they are read out',
  { models: ['tiny-chat'], maxTokens: 20 },
  async ({ page }) => {
    const { driver } = page;
    await page.button('Model: tiny-chat').waitFor();
    await isReady(page);
    const transcript = await Transcript.begin(page);
    const [chooser] = await Promise.all([driver.waitForEvent('filechooser'), page.button('Attach files').click()]);
    const file = (name, text) => ({ name, mimeType: 'text/plain', buffer: Buffer.from(text) });
    await chooser.setFiles([file('cairns.txt', 'Stones are laid upon stones. '.repeat(30)), file('photo.png', 'x')]);
    await transcript.hears(/^“photo\.png” isn’t text/);
    await transcript.hears(/^Read /);
    await page.message.focus();
    await transcript.sees('The documents of a message', driver.locator('form'));
    await page
      .region('Documents')
      .getByRole('button', { name: /: open$/ })
      .focus();
    await driver.keyboard.press('Enter');
    await page.dialog('cairns.txt').getByRole('region').waitFor();
    await transcript.sees('The reader', page.dialog('cairns.txt'));
    await driver.keyboard.press('Escape');
    await page.ask('How many?');
    const inspector = await page.inspector();
    await inspector.getByRole('heading', { name: 'Ready to continue' }).waitFor();
    await inspector.getByRole('group', { name: 'Presets' }).waitFor();
    await transcript.sees('What the chat has of its own', inspector);
    await driver.keyboard.press('Control+k');
    await driver.keyboard.type('as a persona');
    await driver.keyboard.press('Enter');
    await page.dialog('New persona').getByText('Parameters', { exact: true }).waitFor();
    await until('the name has the focus', () => driver.evaluate(() => document.activeElement.localName === 'input'));
    await transcript.sees('A persona', page.dialog('New persona'));
    await transcript.check('documents-and-chat');
  },
);
