// The pages, menus, dialogs and errors, with the starter model.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { CACHE_BYTES, program, target } from '../core.mjs';
import { NARROW, WIDE } from '../stage.mjs';
import { until } from '../until.mjs';

/** The questions of each conversation, the one on the picture last. */
const CONVERSATIONS = [
  ['Explain gravity in one sentence.'],
  ['What are the primary colors?'],
  ['How do I reverse a list in Python?'],
  ['What is the capital of France?', 'What is it known for?'],
];
const SECTIONS = ['General', 'Models', 'Generation', 'Storage', 'Shortcuts', 'Server', 'About'];

export async function pages(stage) {
  // The release build if there is one, so that the speed is what people get.
  const release = join(target, 'release/cairn');
  const home = await stage.home(existsSync(release) ? release : program('cairn'));
  const core = await home.start();
  const page = await stage.open(core.url, { mayComplain: true });
  const look = (name, options) => stage.look(page, name, options);
  const escape = () => page.driver.keyboard.press('Escape');
  await page.button('Refresh').waitFor();
  await look('no-model');

  await home.addBroken('half-a-model');
  await page.button('Refresh').click();
  await page.button('Show models').click();
  await page.driver.getByRole('listitem').filter({ hasText: 'half-a-model' }).waitFor();
  await look('problem');
  await page.backToChat();

  await home.addStarter();
  await page.button('Refresh').click();
  await page.driver.getByRole('heading', { name: 'A conversation keeps its place' }).waitFor();
  await look('empty');

  await core.set({ temperature: 0, max_tokens: 90, cache_budget_bytes: CACHE_BYTES });
  for (const questions of CONVERSATIONS) {
    await page.button('New chat').click();
    for (const question of questions) await page.ask(question);
  }
  const saved = async () => (await core.conversations()).every(({ conversation }) => conversation.cache?.is_whole);
  await until('all of it is saved', saved);
  await page.inspector();
  await look('chat');
  await page.button('Show the inspector').click();

  await page.statusLine.click();
  await look('figures');
  await page.row('How do I reverse a list in Python\\?').click();
  await page.answer.waitFor();
  await look('code');
  await page.driver.setViewportSize(NARROW);
  await page.button('Show sidebar').click();
  await look('drawer', { isNarrow: true });
  await escape();
  await page.driver.setViewportSize(WIDE);
  await page.driver.keyboard.press('Control+k');
  await page.dialog('Search').waitFor();
  await look('palette');
  await page.driver.keyboard.type('list');
  await look('palette-found');
  await escape();
  for (const section of SECTIONS) {
    await page.openSettings(section);
    await look(`settings-${section.toLowerCase()}`);
    await page.backToChat();
  }
  await page.openSettings('Storage');
  await page.box('Disk limit').fill('0.001');
  await page.box('Disk limit').press('Tab');
  await page.button('Cancel').waitFor();
  await look('disk-limit');
  await page.button('Cancel').click();
  await page.backToChat();
  await page.button('Model: SmolLM2 135M').click();
  await page.dialog('Models').waitFor();
  await look('model-menu');
  await escape();
  await page.openPage('Models');
  await look('models');
  await page.openPage('Monitor');
  await look('monitor');
  await page.openPage('Ask many');
  await look('ask-empty');
  await page.button('New question').first().click();
  const requests = [
    'I want my money back.',
    'Where is my parcel?',
    'What a lovely lamp, thank you!',
    'It came broken.',
  ];
  await page.box('Name').fill('Letters of May');
  await page.box('Texts').fill(Array.from({ length: 40 }, (_, index) => requests[index % 4]).join('\n'));
  await page.box('Question').fill('What is the writer asking for?');
  await page.driver.getByText('One of several').click();
  await page.box('Options, one a line').fill('refund: wants money back\nquestion\npraise');
  await page.driver.getByTestId('prompt').waitFor();
  await look('ask-new');
  await page.button('Ask').click();
  const job = page.driver.getByTestId('job-state');
  await until('every text was asked', async () => (await job.innerText()).startsWith('Done'));
  await page.driver.locator('tbody tr').first().focus();
  for (let index = 0; index < 12; index++) await page.driver.keyboard.press(String([1, 2, 3, 1][index % 4]));
  await page.button('Calibrate').click();
  await page.button('Undo calibration').waitFor();
  await look('ask');
  await page.backToChat();

  // Long enough to be seen while it is written, on any machine.
  await core.set({ max_tokens: 4000 });
  await page.send('And in Rust?');
  await page.written(5);
  await look('writing');
  // Looking takes longer than the answer where much else runs; then another one is stopped.
  if ((await page.stop.count()) === 0) {
    await page.send('And in Go?');
    await page.written(5);
  }
  await page.stop.click();
  await page.finished();
  await look('stopped');
  await core.set({ max_tokens: 90 });
  await page.row('How do I reverse a list in Python\\?').click({ button: 'right' });
  await page.driver.getByRole('menu').waitFor();
  await look('row-menu');
  await page.driver.getByRole('menuitem', { name: 'Delete', exact: true }).click();
  await page.button('Undo').waitFor();
  await look('deleted');

  await page.row('What is the capital of France\\?').click();
  const inspector = await page.inspector();
  await inspector.getByRole('heading', { name: 'Ready to continue' }).waitFor();
  await page.savedActions();
  await inspector.getByRole('button', { name: 'Delete saved context…' }).click();
  await look('inspector-question', { isWide: true });
  await inspector.getByRole('button', { name: 'Cancel' }).click();
  await inspector.getByRole('button', { name: 'Save as starting point…' }).click();
  await page.box('Name').fill('France');
  await look('save-starting-point');
  await page.button('Save').click();
  await page.shows('Saved as “France”');
  await page.startingPoint('France').click();
  await page.driver.getByRole('complementary', { name: 'Starting point' }).waitFor();
  await page.ask('How large is it?');
  await look('starting-point');
  await page.openPage('Saved context');
  await page.driver.getByRole('main').getByText('Details').click();
  await page.driver.getByRole('treeitem').first().waitFor();
  await look('saved-context');
  await page.button('Export starting point France').click();
  await page.dialog('Export “France”').waitFor();
  await look('export');
  const [download] = await Promise.all([page.driver.waitForEvent('download'), page.button('Export').click()]);
  const file = join(home.folder, 'France.safetensors');
  await download.saveAs(file);
  const chosen = async (name) => {
    const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), page.button('Import…').click()]);
    await chooser.setFiles(name);
  };
  await chosen(file);
  await page.dialog('Import a prompt cache').getByRole('button', { name: 'Import', exact: true }).waitFor();
  await look('import');
  await escape();
  await chosen(join(home.modelFolder('SmolLM2-135M-Instruct'), 'config.json'));
  await page.dialog('This file cannot be imported').waitFor();
  await look('import-refused');
  await escape();
  await page.backToChat();

  await page.button('New chat').click();
  await page.button('New private chat').click();
  await page.driver.getByRole('heading', { name: 'This chat is private' }).waitFor();
  await look('private');
  await page.row('What is the capital of France\\?').click();
  await core.end('SIGTERM');
  await page.shows('Lost the connection to Cairn');
  await look('disconnected');
}
