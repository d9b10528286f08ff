// How a person gets a model, in Chromium against a real core and a hub on loopback: the first launch, downloads, what can go wrong.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { recommendedNames, tinyModel } from './hub.mjs';
import { card, download, filesIn, hubFlow, NAME, WEIGHTS } from './hub-flow.mjs';
import { until } from './until.mjs';

/** A model with weights that are made up: less than a MiB of a file is not resumed. */
const LARGE = { models: { [NAME]: 50 << 20 } };
hubFlow(
  'from an empty home folder to the first answer: choose a model, watch it come, write',
  { models: async () => Object.fromEntries((await recommendedNames()).map((name) => [name, tinyModel])) },
  async ({ core, page }) => {
    await page.driver.getByRole('heading', { name: 'Choose a model to start' }).waitFor();
    await page.driver.getByRole('radiogroup', { name: 'Model' }).waitFor();
    await page.button('Download and start').click();
    await until('the model is loaded', async () => (await page.status('engine-state').innerText()) === 'Ready');
    await page.ask('hello');
    const { models } = await core.call({ type: 'bootstrap' });
    assert.deepEqual(
      models.map(({ source, problem }) => [source, problem]),
      [['hub_cache', null]],
    );
    assert.ok(models[0].facts.memory.total_bytes > 0, 'its files were opened before it was loaded');
  },
);

hubFlow(
  'a download is paused, outlives the core, and goes on from where it was',
  { ...LARGE },
  async ({ home, core, page, hub }) => {
    await hub.be(`stall ${WEIGHTS} ${3 << 20}`);
    await download(page, NAME);
    await page.button('Pause the download of chat').click();
    await page.button('Resume the download of chat').waitFor();
    const partials = async () => (await filesIn(home.env.HF_HUB_CACHE)).filter((path) => path.endsWith('.incomplete'));
    assert.equal((await partials()).length, 1, 'what has come is kept');

    await core.end('SIGKILL');
    await hub.be('right');
    const again = await home.start(core);
    await page.driver.goto(String(again.url));
    await page.openPage('Models');
    await page.button('Resume the download of chat').click();
    await until('all of it is here', async () => (await partials()).length === 0);
    await until('it is listed', async () => (await again.call({ type: 'bootstrap' })).models[0]?.name === NAME);
    assert.deepEqual(await partials(), []);
  },
);

hubFlow(
  'a cancelled download leaves nothing, and can be taken back for a while',
  LARGE,
  async ({ home, core, page, hub }) => {
    await hub.be(`stall ${WEIGHTS} ${3 << 20}`);
    await download(page, NAME);
    await page.button('Cancel the download of chat').click();
    await page.button('Undo').click();
    await card(page, 'chat').waitFor();
    await page.button('Cancel the download of chat').click();
    await until('it is gone for good', async () => (await core.call({ type: 'bootstrap' })).downloads.length === 0);
    assert.deepEqual(
      (await filesIn(home.env.HF_HUB_CACHE)).filter((path) => path.endsWith('.incomplete')),
      [],
    );
  },
);

const LONG = 'mlx-community/Big-Model-With-A-Very-Long-Name-Instruct-2507-A3B-4bit-DWQ';
hubFlow(
  'what is found has the width of a narrow window for its name',
  { models: { [LONG]: tinyModel }, viewport: { width: 420, height: 800 } },
  async ({ page }) => {
    await page.driver.getByRole('button', { name: 'Other models…' }).click();
    await page.box('Search models').fill('Big-Model');
    await page.box('Search models').press('Enter');
    const name = page.driver.getByRole('button', { name: /^Big Model With A Very Long Name/ });
    await name.waitFor();
    assert.ok((await name.boundingBox()).height < 32, 'its name has one line');
    const facts = page.driver.getByRole('listitem').filter({ has: name }).locator('p');
    assert.ok((await facts.boundingBox()).height < 64, 'what is known of it has few lines');
  },
);

hubFlow(
  'a model without room on the disk is refused before its first byte, and leaves nothing',
  {},
  async ({ home, core, page, hub }) => {
    await hub.be(`length ${NAME} ${WEIGHTS} ${900e12}`);
    await download(page, NAME);
    const alert = card(page, 'chat').getByRole('alert');
    await alert.waitFor();
    const figures =
      /^([\d.]+) GB are missing: the download needs ([\d.]+) GB, and (.+) has ([\d.]+) GB free; make space, then try again\.$/;
    assert.match(
      await alert.innerText(),
      /^There isn’t enough room in .+: 945,001 GB are needed, and .+ are free\. Make room/,
    );
    const [{ failure }] = (await core.call({ type: 'bootstrap' })).downloads;
    const [, missing, needed, folder, free] = figures.exec(failure.message);
    assert.equal(folder, home.env.HF_HUB_CACHE);
    // The weights, a twentieth of them, and a GiB.
    assert.ok(Math.abs(Number(needed) - 945_001.07) < 1, `it needs ${needed} GB`);
    assert.ok(Math.abs(Number(needed) - Number(free) - Number(missing)) < 0.05, `${missing} of ${needed} and ${free}`);

    // The page of the model shows its README.md and reads its config.json.
    const isFile = ({ side, target }) => side === 'Bytes' || /resolve.*(safetensors|tokenizer)/.test(target);
    assert.deepEqual((await hub.requests()).filter(isFile), []);
    await page.button('Cancel the download of chat').click();
    await until('it is forgotten', async () => (await core.call({ type: 'bootstrap' })).downloads.length === 0);
    assert.ok(!existsSync(home.env.HF_HUB_CACHE), 'a folder is left');
  },
);

hubFlow(
  'a gated model names the page of its terms, and comes when they are accepted',
  {},
  async ({ core, page, hub }) => {
    await hub.be(`gated ${NAME}`);
    await download(page, NAME);
    const alert = card(page, 'chat').getByRole('alert');
    await alert.waitFor();
    assert.equal(
      await alert.innerText(),
      'Its makers want you to accept their terms first. Open its page, accept them, and add a token of your account in the settings.',
    );
    const link = card(page, 'chat').getByRole('link', { name: 'Open its page' });
    assert.equal(await link.getAttribute('href'), `${hub.endpoint}/${NAME}`);
    await hub.be(`open ${NAME}`);
    await page.button('Try again, chat').click();
    await until('the model is here', async () => (await core.call({ type: 'bootstrap' })).models[0]?.facts);
  },
);

hubFlow('a damaged file never becomes a model, and is fetched again', {}, async ({ core, page, hub }) => {
  await hub.be(`damage ${WEIGHTS}`);
  await download(page, NAME);
  const alert = card(page, 'chat').getByRole('alert');
  await alert.waitFor();
  assert.equal(
    await alert.innerText(),
    '“model.safetensors” of chat arrived damaged twice and was not kept: try again later.',
  );
  assert.equal((await core.call({ type: 'bootstrap' })).models.filter((model) => model.problem === null).length, 0);
  await hub.be('right');
  await page.button('Try again, chat').click();
  await until('the model is here', async () => (await core.call({ type: 'bootstrap' })).models[0]?.facts);
});

hubFlow('a deleted model comes back with Undo, and its files go without', {}, async ({ home, core, page }) => {
  await download(page, NAME);
  await until('the model is here', async () => (await core.call({ type: 'bootstrap' })).models[0]?.facts);
  const remove = async () => {
    await page.openPage('Models');
    await page.driver.getByRole('tab', { name: /^On this/ }).click();
    await page.button('Actions for chat').click();
    await page.driver.getByRole('menuitem', { name: 'Delete…' }).click();
    await page
      .dialog('Delete chat')
      .getByText(/This frees/)
      .waitFor();
    await page.dialog('Delete chat').getByRole('button', { name: 'Delete', exact: true }).click();
    await page.shows('Deleted chat.');
  };
  await remove();
  await page.button('Undo').click();
  await until('it is listed again', async () => (await core.call({ type: 'bootstrap' })).models.length === 1);
  await remove();
  await core.end('SIGTERM');
  assert.deepEqual(
    (await filesIn(home.env.HF_HUB_CACHE)).filter((path) => path.includes('blobs')),
    [],
  );
});
