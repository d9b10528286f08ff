// What pictures and checks of the whole interface share. A scene (in scenes/) puts the interface into one state after another and looks at
// each; what a look does is said by whoever plays the scene: `pictures.mjs` draws, `scenes.test.mjs` checks.
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Home } from './core.mjs';
import { FakeCore } from './fake-core.mjs';
import { Page } from './page.mjs';

export const WIDE = { width: 1240, height: 820 };
export const NARROW = { width: 480, height: 800 };

/** Everything a scene uses; it is removed when the scene has ended. */
export class Stage {
  #browser;
  #look;
  #ends = [];

  /** `look` is given a page, the name of its state, and what is special about it. */
  constructor(browser, look) {
    this.#browser = browser;
    this.#look = look;
  }

  /** Looks at a state. `isWide`: a narrow window would close what is to be seen. `to`: the file of a picture that the README shows. */
  look(page, name, options = {}) {
    return this.#look(page, name, options);
  }

  /** A core without models, whose replies a scene makes up. */
  async fakeCore() {
    const core = await FakeCore.start();
    this.#ends.push(() => core.end());
    return core;
  }

  /** A data folder for real cores. */
  async home(program) {
    const home = new Home(await this.folder(), program);
    await mkdir(home.env.HOME);
    this.#ends.push(() => home.remove());
    return home;
  }

  /** An empty folder. */
  async folder() {
    const folder = await mkdtemp(join(tmpdir(), 'cairn-scene-'));
    this.#ends.push(() => rm(folder, { recursive: true, force: true }));
    return folder;
  }

  /** A page in a window of its own, as wide as most. `mayComplain`: of what the scene lets happen to its core. */
  async open(url, { scale = 1, mayComplain = false } = {}) {
    const context = await this.#browser.newContext({ viewport: WIDE, deviceScaleFactor: scale, locale: 'en-US' });
    const page = new Page(await context.newPage());
    // It closes before its core ends, which it would otherwise complain about.
    this.#ends.push(async () => {
      await context.close();
      if (!mayComplain && page.complaints.length > 0) throw new Error(page.complaints.join('\n'));
    });
    await page.open(url);
    return page;
  }

  /** Plays a scene, and puts away what it used, the last first. */
  async play(scene) {
    const problems = [];
    const attempt = (step) => step().catch((problem) => problems.push(problem));
    await attempt(async () => scene(this));
    for (const end of this.#ends.splice(0).toReversed()) await attempt(async () => end());
    if (problems.length > 0) throw problems[0];
  }
}

/** Lets the window follow a system with another language, as it does when the system's own changes. */
export async function speak(page, language) {
  await page.driver.evaluate((tag) => {
    Object.defineProperty(navigator, 'languages', { value: [tag], configurable: true });
    window.dispatchEvent(new Event('languagechange'));
  }, language);
}
