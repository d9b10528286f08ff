// Takes the README's pictures (`npm run screenshots`): a short conversation with the starter model, light and dark, into assets/. Beside
// them, into e2e/ of the target folder, states that a picture tells more of than a test: every page, narrow windows, menus, dialogs,
// errors, German. Nothing waits for a time: each picture is taken when what it shows is there.
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Home, program, root, target } from './core.mjs';
import { launchBrowser, Page } from './page.mjs';
import { until } from './until.mjs';

/** The questions of each conversation, the one on the picture last. */
const CONVERSATIONS = [
  ['Explain gravity in one sentence.'],
  ['What are the primary colors?'],
  ['How do I reverse a list in Python?'],
  ['What is the capital of France?', 'What is it known for?'],
];
const WIDE = { width: 1240, height: 800 };
const NARROW = { width: 480, height: 800 };
const SECTIONS = ['General', 'Models', 'Generation', 'Storage', 'Shortcuts', 'Server', 'About'];

// Uses the release build if there is one, so that the pictures show the speed that people get.
const release = join(target, 'release/cairn');
const home = new Home(
  await mkdtemp(join(tmpdir(), 'cairn-pictures-')),
  existsSync(release) ? release : program('cairn'),
);
const folder = join(target, 'e2e');
const browser = await launchBrowser();
try {
  await mkdir(folder, { recursive: true });
  const core = await home.start();
  const page = new Page(await browser.newPage({ viewport: WIDE }));
  const look = async (name, { size = WIDE, colorScheme = 'light', to = folder } = {}) => {
    await page.driver.emulateMedia({ colorScheme });
    await page.driver.setViewportSize(size);
    await page.driver.screenshot({
      path: join(to, `${name}.png`),
      animations: 'disabled',
    });
  };
  const both = async (name, options) => {
    await look(name, options);
    await look(`${name}-dark`, { ...options, colorScheme: 'dark' });
  };
  const escape = () => page.driver.keyboard.press('Escape');
  await page.open(core.url);
  await page.button('Refresh').waitFor();
  await both('no-model');

  await home.addBroken('half-a-model');
  await page.button('Refresh').click();
  await page.button('Show models').click();
  await page.driver.getByRole('listitem').filter({ hasText: 'half-a-model' }).waitFor();
  await look('problem');
  await page.backToChat();

  await home.addStarter();
  await page.button('Refresh').click();
  await page.driver.getByRole('heading', { name: 'A conversation keeps its place' }).waitFor();
  await both('empty');
  await look('empty-narrow', { size: NARROW, colorScheme: 'dark' });
  await page.driver.setViewportSize(WIDE);

  await core.set({ temperature: 0, max_tokens: 90 });
  for (const questions of CONVERSATIONS) {
    await page.button('New chat').click();
    for (const question of questions) await page.ask(question);
  }
  const saved = async () => (await core.conversations()).every(({ conversation }) => conversation.cache?.is_whole);
  await until('all of it is saved', saved);
  await page.inspector();
  // So that neither pointer nor caret is in the picture.
  await page.driver.mouse.move(600, 400);
  await page.driver.getByRole('heading', { level: 1 }).focus();
  await look('screenshot-light', { to: join(root, 'assets') });
  await look('screenshot-dark', { colorScheme: 'dark', to: join(root, 'assets') });
  await page.button('Show the inspector').click();
  await look('narrow', { size: NARROW });
  await page.driver.setViewportSize(WIDE);

  await page.statusLine.click();
  await look('figures');
  await page.row('How do I reverse a list in Python\\?').click();
  await page.answer.waitFor();
  await both('code');
  await look('code-narrow', { size: NARROW, colorScheme: 'dark' });
  await page.button('Show sidebar').click();
  await look('drawer', { size: NARROW });
  await escape();
  await page.driver.setViewportSize(WIDE);
  await page.driver.keyboard.press('Control+k');
  await page.dialog('Search').waitFor();
  await both('palette');
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
  await both('disk-limit');
  await page.button('Cancel').click();
  await page.backToChat();
  await page.button('Model: SmolLM2-135M-Instruct').click();
  await page.dialog('Models').waitFor();
  await both('model-menu');
  await escape();
  await page.openPage('Models');
  await both('models');
  await page.openPage('Monitor');
  await both('monitor');
  await page.openPage('Ask many');
  await both('ask-empty');
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
  await both('ask-new');
  await look('ask-new-narrow', { size: NARROW });
  await page.driver.setViewportSize(WIDE);
  await page.button('Ask').click();
  const job = page.driver.getByTestId('job-state');
  await until('every text was asked', async () => (await job.innerText()).startsWith('Done'));
  await page.driver.locator('tbody tr').first().focus();
  for (let index = 0; index < 12; index++) await page.driver.keyboard.press(String([1, 2, 3, 1][index % 4]));
  await page.button('Calibrate').click();
  await page.button('Undo calibration').waitFor();
  await both('ask');
  await look('ask-narrow', { size: NARROW });
  await page.driver.setViewportSize(WIDE);
  await page.backToChat();

  // Long enough to be seen while it is written, on any machine.
  await core.set({ max_tokens: 4000 });
  await page.send('And in Rust?');
  await page.written(5);
  await look('writing');
  await page.stop.click();
  await page.finished();
  await look('stopped');
  await core.set({ max_tokens: 90 });
  await page.row('How do I reverse a list in Python\\?').click({ button: 'right' });
  await page.driver.getByRole('menu').waitFor();
  await both('row-menu');
  await page.driver.getByRole('menuitem', { name: 'Delete', exact: true }).click();
  await page.button('Undo').waitFor();
  await look('deleted');

  await page.row('What is the capital of France\\?').click();
  const inspector = await page.inspector();
  await inspector.getByRole('heading', { name: 'Ready to continue' }).waitFor();
  await inspector.getByRole('button', { name: 'Delete saved context…' }).click();
  await look('inspector-question');
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
  await page.driver.getByText('Stored pieces').click();
  await page.driver.getByRole('treeitem').first().waitFor();
  await both('saved-context');
  await look('saved-context-narrow', { size: NARROW });
  await page.driver.setViewportSize(WIDE);
  await page.button('Export starting point France').click();
  await page.dialog('Export “France”').waitFor();
  await both('export');
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
  await look('import-narrow', { size: NARROW, colorScheme: 'dark' });
  await page.driver.setViewportSize(WIDE);
  await escape();
  await chosen(join(home.modelFolder('SmolLM2-135M-Instruct'), 'config.json'));
  await page.dialog('This file cannot be imported').waitFor();
  await look('import-refused');
  await escape();
  await page.backToChat();

  await page.button('New chat').click();
  await page.button('New private chat').click();
  await page.driver.getByRole('heading', { name: 'This chat is private' }).waitFor();
  await both('private');
  await page.row('What is the capital of France\\?').click();
  await page.openSettings('General');
  await page.driver.getByRole('combobox', { name: 'Language' }).selectOption('Deutsch');
  await look('german-settings');
  await escape();
  await page.driver.locator('.markdown').first().waitFor();
  await look('german');
  await core.end('SIGTERM');
  await page.driver.getByText('Die Verbindung zu Cairn ist unterbrochen.').waitFor();
  await look('german-disconnected');
} finally {
  await browser.close();
  await home.remove();
}
