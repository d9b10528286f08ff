// Takes the README's pictures (`npm run screenshots`): a short conversation with the starter model, light and dark, into assets/. Beside
// them, into e2e/ of the target folder, states that a picture tells more of than a test: empty, narrow, a model with a problem, dialogs.
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Home, program, root, target } from './core.mjs';
import { launchBrowser, Page } from './page.mjs';

/** The questions of each conversation, the one on the picture last. */
const CONVERSATIONS = [
  ['Explain gravity in one sentence.'],
  ['What are the primary colors?'],
  ['How do I reverse a list in Python?'],
  ['What is the capital of France?', 'What is it known for?'],
];
const WIDE = { width: 1200, height: 800 };
const NARROW = { width: 400, height: 800 };

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
    await page.driver.screenshot({ path: join(to, `${name}.png`), animations: 'disabled' });
  };
  await page.open(core.url);
  await page.button('Refresh').waitFor();
  await look('no-model');

  await home.addBroken('half-a-model');
  await page.button('Refresh').click();
  await page.button('Show models').click();
  await look('problem');
  await page.driver.keyboard.press('Escape');

  await home.addStarter();
  await page.button('Refresh').click();
  await page.driver.getByRole('heading', { name: 'A conversation keeps its place' }).waitFor();
  await look('empty');
  await look('empty-narrow', { size: NARROW, colorScheme: 'dark' });
  await page.driver.setViewportSize(WIDE);

  await core.set({ temperature: 0, max_tokens: 180 });
  for (const questions of CONVERSATIONS) {
    await page.button('New chat').click();
    for (const question of questions) await page.ask(question);
  }
  // So that neither pointer nor caret is in the picture.
  await page.driver.mouse.move(600, 400);
  await page.driver.getByRole('heading', { level: 1 }).click();
  await look('screenshot-light', { to: join(root, 'assets') });
  await look('screenshot-dark', { colorScheme: 'dark', to: join(root, 'assets') });
  await look('narrow', { size: NARROW });

  await page.driver.setViewportSize(WIDE);
  await page.statusLine.click();
  await look('figures');
  await page.row('How do I reverse a list in Python\\?').click();
  await look('code');
  await look('code-narrow', { size: NARROW, colorScheme: 'dark' });
  await page.button('Show chats').click();
  await look('drawer', { size: NARROW });
  await page.driver.setViewportSize(WIDE);
  await page.button('Settings').click();
  await look('settings');
  await look('settings-dark', { colorScheme: 'dark' });
  await page.driver.keyboard.press('Escape');
  await page.button('Model: SmolLM2-135M-Instruct').click();
  await look('models', { colorScheme: 'dark' });
  await page.driver.keyboard.press('Escape');
  // Long enough to be seen while it is written, on any machine.
  await core.set({ max_tokens: 4000 });
  await page.send('And in Rust?');
  await page.written(5);
  await look('writing');
  await page.stop.click();
  await page.finished();
  await look('stopped');
  await core.set({ max_tokens: 180 });
  await page.driver.mouse.move(130, 150);
  await page.button('Delete How do I reverse a list in Python?').click({ force: true });
  await page.button('Undo').waitFor();
  await look('deleted');

  await page.row('What is the capital of France\\?').click();
  await page.button('Saved').click();
  await page.dialog('Saved context of this chat').waitFor();
  await look('saved-panel');
  await look('saved-panel-dark', { colorScheme: 'dark' });
  await page.button('Save as starting point…').click();
  await page.box('Name').fill('France');
  await page.button('Save').click();
  await page.shows('Saved as “France”');
  await page.driver.keyboard.press('Escape');
  await page.button('Start from…').click();
  await look('start-from');
  await page.startingPoint('France').click();
  await page.driver.getByRole('complementary', { name: 'Starting point' }).waitFor();
  await page.ask('How large is it?');
  await look('starting-point');
  await page.button('Saved context').click();
  await page.driver.getByText('Details').click();
  await page.driver.getByRole('treeitem').first().waitFor();
  await look('saved-context');
  await look('saved-context-dark', { colorScheme: 'dark' });
  await look('saved-context-narrow', { size: NARROW });
  await page.driver.setViewportSize(WIDE);
  await page.button('Export starting point France').click();
  await look('export');
  const [download] = await Promise.all([page.driver.waitForEvent('download'), page.button('Export').click()]);
  const file = join(home.folder, 'France.safetensors');
  await download.saveAs(file);
  const chosen = async (name) => {
    const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), page.button('Import…').click()]);
    await chooser.setFiles(name);
  };
  await chosen(file);
  await page.dialog('Import a prompt cache').waitFor();
  await look('import');
  await look('import-narrow', { size: NARROW, colorScheme: 'dark' });
  await page.driver.setViewportSize(WIDE);
  await page.driver.keyboard.press('Escape');
  await chosen(join(home.modelFolder('SmolLM2-135M-Instruct'), 'config.json'));
  await page.dialog('This file cannot be imported').waitFor();
  await look('import-refused');
} finally {
  await browser.close();
  await home.remove();
}
