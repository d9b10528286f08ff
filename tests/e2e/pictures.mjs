// Draws the interface (`npm run pictures`): every state of every scene, wide and narrow, light and dark, in German, and in the colours that
// a system dictates, into pictures/ of the target folder, and the README's own into assets/. The interface and the programs have to be
// built, and two scenes need the starter model. `node pictures.mjs answers compare` draws these scenes only. Nothing waits for a time:
// each picture is drawn when what it shows is there.
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { root, target } from './core.mjs';
import { launchBrowser } from './page.mjs';
import { SCENES } from './scenes/index.mjs';
import { NARROW, speak, Stage, WIDE } from './stage.mjs';

const VIEWS = [
  { suffix: '' },
  { suffix: '-dark', colorScheme: 'dark' },
  { suffix: '-forced', forcedColors: 'active' },
  { suffix: '-german', language: 'de' },
  { suffix: '-narrow', size: NARROW },
  { suffix: '-narrow-dark', size: NARROW, colorScheme: 'dark' },
  { suffix: '-narrow-german', size: NARROW, language: 'de' },
];
/** Of the README's pictures. Higher is hardly better, and larger. */
const QUALITY = 76;
const SCALE = 1.5;

const folder = join(target, 'pictures');
const names = process.argv.slice(2);
const unknown = names.filter((name) => !(name in SCENES));
if (unknown.length > 0) throw new Error(`no scene is called ${unknown.join(', ')}; there are ${Object.keys(SCENES)}`);
const chosen = names.length > 0 ? names : Object.keys(SCENES);
const browser = await launchBrowser();
let numPictures = 0;

async function draw(page, path, { size = WIDE, colorScheme = 'light', forcedColors = 'none' } = {}) {
  await page.driver.setViewportSize(size);
  await page.driver.emulateMedia({ colorScheme, forcedColors });
  // As it is in the end, without what fades in or blinks.
  await page.driver.screenshot({ path, animations: 'disabled', caret: 'hide' });
  numPictures++;
}

/** A smaller file, which Playwright has no name for. */
async function drawForReadme(page, name, colorScheme = 'light') {
  await page.driver.emulateMedia({ colorScheme });
  // For what it waits for: animations that have ended.
  await page.driver.screenshot({ animations: 'disabled', caret: 'hide' });
  const session = await page.driver.context().newCDPSession(page.driver);
  const { data } = await session.send('Page.captureScreenshot', {
    format: 'webp',
    quality: QUALITY,
    clip: { x: 0, y: 0, ...WIDE, scale: SCALE },
  });
  await session.detach();
  await writeFile(join(root, 'assets', `${name}.webp`), Buffer.from(data, 'base64'));
  numPictures++;
}

/** Draws a state in every view, and leaves the page as it was. */
async function look(page, name, { isWide = false, isNarrow = false, to, toDark } = {}) {
  if (to) await drawForReadme(page, to);
  if (toDark) await drawForReadme(page, toDark, 'dark');
  for (const { suffix, language, ...view } of VIEWS) {
    if (isWide && view.size) continue;
    if (isNarrow && !view.size) continue;
    if (language) await speak(page, language);
    await draw(page, join(folder, `${name}${suffix}.png`), view);
    if (language) await speak(page, 'en-US');
  }
  await page.driver.emulateMedia({ colorScheme: 'light', forcedColors: 'none' });
  if (!isNarrow) await page.driver.setViewportSize(WIDE);
}

await mkdir(folder, { recursive: true });
try {
  for (const name of chosen) {
    const before = numPictures;
    try {
      await new Stage(browser, (page, state, options) => look(page, `${name}-${state}`, options)).play(SCENES[name]);
    } catch (error) {
      // One that goes wrong is told and does not stop the others.
      console.error(`${name}:`, error);
      process.exitCode = 1;
    }
    console.log(`${name}: ${numPictures - before} pictures`);
  }
} finally {
  await browser.close();
}
console.log(`${numPictures} pictures are in ${folder} and in ${join(root, 'assets')}`);
