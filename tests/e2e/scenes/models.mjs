// The pages about models in every state. The core is a real one, its hub one on loopback.
import { cp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../core.mjs';
import { writeGguf } from '../gguf.mjs';
import { FakeHub, recommendedNames, tinyModel } from '../hub.mjs';
import { until } from '../until.mjs';

const WEIGHTS = 'model.safetensors';
/** Models of the hub; the weights of all but the last are made up and too long to come before a picture is taken. */
const LARGE = ['mlx-community/Large-4bit', 'mlx-community/Second-4bit', 'mlx-community/Third-4bit'];
const GATED = 'makers/Gated-8B-Instruct';

const discover = (page) => page.driver.getByRole('tab', { name: 'Discover', exact: true }).click();
const card = (page, name) => page.driver.getByRole('article', { name, exact: true });

async function search(page, text) {
  await page.box('Search models').fill(text);
  await page.box('Search models').press('Enter');
}

export async function models(stage) {
  const hub = await FakeHub.start({
    ...Object.fromEntries((await recommendedNames()).map((name) => [name, tinyModel])),
    ...Object.fromEntries(LARGE.map((name) => [name, 80 << 20])),
    [GATED]: tinyModel,
  });
  try {
    await play(stage, hub);
  } finally {
    await hub.end();
  }
}

async function play(stage, hub) {
  /** A core on a home folder of its own, and a page that shows it. */
  const open = async (steps, prepare = async () => {}) => {
    const home = await stage.home();
    home.useHub(hub.endpoint);
    await prepare(home);
    const core = await home.start();
    const page = await stage.open(core.url, { mayComplain: true });
    const look = (name, options) => stage.look(page, name, options);
    await steps({ home, core, page, look });
    await page.driver.close();
    await hub.be('right');
  };

  await open(async ({ page, look, home }) => {
    await page.driver.getByRole('radiogroup', { name: 'Model' }).waitFor();
    await look('first-launch');
    const letThrough = await page.holdBack('**/api/models/import');
    const file = join(home.folder, 'Tiny-Llama.gguf');
    await writeGguf(file);
    await page.drop(file);
    await card(page, 'Tiny-Llama.gguf').waitFor();
    await look('first-launch-import');
    await page.button('Cancel the import of Tiny-Llama.gguf').click();
    letThrough();
    await card(page, 'Tiny-Llama.gguf').waitFor({ state: 'detached' });
    await writeGguf(file, { isRounded: true });
    await page.drop(file);
    await page.dialog('Import Tiny-Llama.gguf').getByRole('radio', { name: '8 bits' }).waitFor();
    await look('import-rounding');
    await page.dialog('Import Tiny-Llama.gguf').getByRole('button', { name: 'Cancel', exact: true }).click();
    await card(page, 'Tiny-Llama.gguf').waitFor({ state: 'detached' });
    await page.openPage('Models');
    await look('empty');
    await discover(page);
    await page.driver
      .getByRole('button', { name: /^Download / })
      .first()
      .waitFor();
    await look('discover');
    await search(page, 'nothing has this name');
    await page.shows(/Nothing found/);
    await look('no-results');
    await hub.be(`gated ${GATED}`);
    // A whole name opens what the hub says about it.
    await search(page, GATED);
    await page.shows(/Its makers want you/);
    await look('gated-card');
    await search(page, '4bit');
    await page.shows(/models found/);
    // One of them fits well, so its facts have come.
    await page.driver.getByText('Fits well').first().waitFor();
    await look('search-results');
  });

  await open(
    async ({ page, core, look }) => {
      await page.driver.getByRole('radiogroup', { name: 'Model' }).waitFor();
      await look('first-launch-offline');
      await page.openPage('Models');
      await discover(page);
      await search(page, 'llama');
      await page.shows(/hub cannot be reached/);
      await look('discover-offline');
      await core.call({ type: 'download_model', name: LARGE[0] });
      await page.shows('Waiting for the connection to the hub');
      await look('downloads-offline');
    },
    // Nothing listens there.
    (home) => home.useHub('http://127.0.0.1:1'),
  );

  await open(async ({ page, core, look }) => {
    await page.driver.getByRole('radiogroup', { name: 'Model' }).waitFor();
    await hub.be(`stall ${WEIGHTS} ${30 << 20}`);
    await hub.be(`gated ${GATED}`);
    for (const name of [GATED, ...LARGE, (await recommendedNames())[0]])
      await core.call({ type: 'download_model', name });
    await card(page, 'Gated 8B').getByRole('alert').waitFor();
    await page.driver
      .getByText(/^\d+ %|MB of/)
      .first()
      .waitFor();
    await core.call({ type: 'pause_download', name: LARGE[1] });
    await page.button('Resume the download of Second').waitFor();
    await look('first-launch-downloads');
    await page.openPage('Models');
    await look('downloads');
    await card(page, 'Large').getByText('Files', { exact: true }).first().click();
    await look('download-files');
    await page.button('Cancel the download of Third').click();
    await page.button('Undo').waitFor();
    await look('download-cancelled');
    await hub.be(`gated ${LARGE[1]}`);
    await core.call({ type: 'download_model', name: LARGE[1] });
    await card(page, 'Second').getByRole('alert').waitFor();
    await discover(page);
    await page.button('Details of Second').waitFor();
    await look('downloads-failed');
    await hub.be('right');
    await hub.be(`open ${LARGE[1]}`);
    await hub.be(`open ${GATED}`);
  });

  await open(
    async ({ page, core, look }) => {
      await page.driver.getByRole('button', { name: /^Model: / }).waitFor();
      await core.call({ type: 'load_model', name: 'tiny-chat' });
      await page.ask('Why is the sky blue?');
      await core.call({ type: 'unload_model' });
      await core.call({ type: 'load_model', name: 'other' });
      await page.button('Answer with other instead').waitFor();
      await look('chat-offer');
      await page.openPage('Models');
      await page.button('Actions for other').click();
      await page.driver.getByRole('menuitem', { name: 'Settings…' }).click();
      const dialog = page.dialog('Settings of other');
      await dialog.getByText(/This model reads at most/).waitFor();
      await look('model-settings');
      await dialog.getByLabel('Pinned').click();
      await dialog.getByText(/Without effect/).waitFor();
      await dialog.getByLabel('Context length').fill('9999999');
      await dialog.getByLabel('Context length').press('Tab');
      await dialog.getByText(/Enter a whole number/).waitFor();
      await look('model-settings-refused');
    },
    async (home) => {
      await home.addTinyModel('tiny-chat');
      await cp(tinyModel, home.modelFolder('other'), { recursive: true });
    },
  );

  await open(async ({ page, core, look }) => {
    await page.openPage('Models');
    await page.shows(/not a regular file/);
    await page.button('Load tiny-chat').click();
    await until('it is loaded', async () => (await page.status('engine-state').innerText()) === 'Ready');
    await look('list');
    await page.driver
      .getByRole('listitem')
      .filter({ hasText: 'tiny-chat' })
      .getByRole('button', { expanded: false })
      .first()
      .click();
    await look('list-memory');
    await page.button('Actions for tiny-chat').click();
    await page.driver.getByRole('menu').waitFor();
    await look('list-menu');
    await page.driver.getByRole('menuitem', { name: 'Delete…' }).click();
    await page
      .dialog('Delete tiny-chat')
      .getByText(/This frees/)
      .waitFor();
    await look('delete');
    await page.dialog('Delete tiny-chat').getByRole('button', { name: 'Delete', exact: true }).click();
    await page.shows('Deleted tiny-chat.');
    await look('deleted');
    await page.openSettings('Models');
    await page.driver.getByLabel('New token').waitFor();
    await look('hub-settings');
    await page.driver.getByLabel('New token').fill('hf_example');
    await page.button('Save token').click();
    await page.shows('Kept in a file that only you can read');
    await look('hub-settings-token');
    await core.end('SIGTERM');
  }, addEveryKind);
}

/** A model that runs, and one for each thing that can be wrong. */
async function addEveryKind(home) {
  await home.addTinyModel('tiny-chat');
  await home.addBroken('half-a-model');
  const change = async (name, file, edit) => {
    const path = join(home.modelFolder(name), file);
    await cp(tinyModel, home.modelFolder(name), { recursive: true });
    await writeFile(path, JSON.stringify(edit(JSON.parse(await readFile(path, 'utf8')))));
  };
  await change('another-architecture', 'config.json', (config) => ({ ...config, model_type: 'mamba' }));
  await change('damaged', 'tokenizer.json', () => ({}));
  // Each step doubles the text, which is refused.
  const double = { type: 'Replace', pattern: { String: 'a' }, content: 'aa' };
  await change('doubling', 'tokenizer.json', (tokenizer) => ({
    ...tokenizer,
    normalizer: { type: 'Sequence', normalizers: Array(24).fill(double) },
  }));
  await change('with-a-pipe', 'config.json', (config) => config);
  const template = join(home.modelFolder('with-a-pipe'), 'chat_template.jinja');
  await rm(template, { force: true });
  await run('mkfifo', [template], home.env);
}
