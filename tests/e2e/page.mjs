// Cairn's interface in Chromium: finds and uses what a user sees on the page, and collects the page's complaints.
import { chromium } from 'playwright-core';
import { LIMIT_MS, until } from './until.mjs';

export function launchBrowser() {
  // Chromium's own sandbox does not work in containers; the only page it opens is ours.
  return chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox'],
  });
}

/** A page that shows Cairn. */
export class Page {
  /** Errors and warnings on the console, exceptions, and what the content security policy forbade. */
  complaints = [];

  constructor(driver) {
    this.driver = driver;
    driver.setDefaultTimeout(LIMIT_MS);
    driver.on('pageerror', (error) => this.complaints.push(String(error)));
    driver.on('console', (line) => {
      if (['error', 'warning'].includes(line.type())) this.complaints.push(`${line.text()} (${line.location().url})`);
    });
    this.message = this.box('Message');
    this.answers = this.region('Messages').getByRole('article', {
      name: 'Answer',
    });
    this.answer = this.answers.last();
    this.stop = this.button('Stop');
  }

  async open(url) {
    await this.driver.addInitScript(() =>
      document.addEventListener('securitypolicyviolation', (event) =>
        console.error(`forbidden by the policy: ${event.violatedDirective} ${event.blockedURI}`),
      ),
    );
    await this.driver.goto(String(url));
  }

  button(name) {
    return this.driver.getByRole('button', { name, exact: true });
  }

  box(name) {
    return this.driver.getByRole('textbox', { name, exact: true });
  }

  region(name) {
    return this.driver.getByRole('region', { name, exact: true });
  }

  dialog(name) {
    return this.driver.getByRole('dialog', { name, exact: true });
  }

  /** A figure of the engine's pill (`engine-state`, `memory`) or of the monitor (`rate`, `device`, `saved-context`). */
  status(id) {
    return this.driver.getByTestId(id);
  }

  /** Opens one of the pages of the sidebar or, by the pill, the monitor; returns when its heading is shown. */
  async openPage(name) {
    if (name === 'Monitor') await this.driver.getByTestId('engine-state').click();
    // While something is downloaded, the name of the entry ends with how far it is.
    else
      await this.driver
        .getByRole('navigation')
        .getByRole('button', { name: new RegExp(`^${name}`) })
        .click();
    await this.driver.getByRole('heading', { name, level: 1, exact: true }).waitFor();
  }

  /** Opens a section of the settings. */
  async openSettings(section) {
    await this.button('Settings').click();
    await this.driver.getByRole('navigation').getByRole('button', { name: section, exact: true }).click();
    await this.driver.getByRole('heading', { name: section, level: 1, exact: true }).waitFor();
  }

  /** Leaves a page for the chat. */
  async backToChat() {
    // A dialog that is closing would take the key.
    await this.driver.getByRole('dialog').first().waitFor({ state: 'detached' });
    await this.driver.keyboard.press('Escape');
    // Where much else runs, the dialog may still have had the focus: then the key is pressed once more.
    const isBack = await this.message.waitFor({ timeout: 30_000 }).then(
      () => true,
      () => false,
    );
    if (!isBack) await this.driver.keyboard.press('Escape');
    await this.message.waitFor();
  }

  /** The inspector of the open chat, which is opened if it is not. */
  async inspector() {
    const inspector = this.driver.getByRole('complementary', {
      name: 'This chat',
      exact: true,
    });
    if ((await inspector.count()) === 0) await this.button('Show the inspector').click();
    await inspector.waitFor();
    return inspector;
  }

  /** What can be done with the saved context of the open chat. */
  async savedActions() {
    const panel = (await this.inspector()).getByRole('region', { name: 'Saved context of this chat' });
    const details = panel.locator('details');
    await details.waitFor();
    if (!(await details.evaluate(({ open }) => open))) await panel.getByText('Details', { exact: true }).click();
    return panel;
  }

  /** Lets a model answer the open chat from now on. */
  async chooseModel(name) {
    await this.driver.getByRole('button', { name: /^Model: / }).click();
    await this.dialog('Models')
      .getByRole('button', { name: new RegExp(`^${name}`) })
      .click();
    await this.button(`Model: ${name}`).waitFor();
    await this.dialog('Models').waitFor({ state: 'hidden' });
  }

  /** Chooses from the menu of a row. */
  async choose(row, item) {
    await row.click({ button: 'right' });
    await this.driver.getByRole('menuitem', { name: item, exact: true }).click();
  }

  /** The row of a conversation; while an answer is being written, its name says so too. */
  row(title) {
    return this.driver.getByRole('navigation').getByRole('button', { name: new RegExp(`^${title}( ?, answering)?$`) });
  }

  /** A starting point in the sidebar. */
  startingPoint(name) {
    return this.driver.getByRole('region', { name: 'Starting points' }).getByRole('button', { name, exact: true });
  }

  /** Drops files or folders of this machine on the middle of the page, as a person does; before that `onOver` is called. */
  async drop(files, { onOver } = {}) {
    const session = await this.driver.context().newCDPSession(this.driver);
    const { width, height } = this.driver.viewportSize();
    const data = { items: [], files: [files].flat(), dragOperationsMask: 1 };
    const send = (type) => session.send('Input.dispatchDragEvent', { type, x: width / 2, y: height / 2, data });
    const zone = this.driver.getByText('Drop documents to attach them').filter({ visible: true });
    // Where what the pointer is over is drawn anew, it counts as left until the hand moves on.
    await until('the page takes what is dropped', async () => {
      await send('dragEnter');
      await send('dragOver');
      return (await zone.count()) > 0;
    });
    await onOver?.();
    // What the pointer was over may have been drawn anew since it moved: then nothing takes the drop, and a hand moves on.
    do {
      await send('dragEnter');
      await send('dragOver');
      await send('drop');
      await this.driver.evaluate(() => new Promise((resolve) => requestAnimationFrame(resolve)));
    } while ((await zone.count()) > 0);
    await session.detach();
  }

  /**
   * Holds requests to this address back until what it returns is called; those until then are never answered. The route stays: taken
   * away, the browser sends what it held, also what the page has just given up.
   */
  async holdBack(address) {
    let isHeld = true;
    await this.driver.route(address, (route) => (isHeld ? undefined : route.continue()));
    return () => {
      isHeld = false;
    };
  }

  /** The name of what has the focus: never the page itself. */
  focused() {
    return this.driver.evaluate(() => {
      const active = document.activeElement;
      if (!active || active === document.body) return null;
      return active.getAttribute('aria-label') ?? active.textContent?.trim() ?? '';
    });
  }

  /** Waits until this text can be seen somewhere. */
  async shows(text) {
    await this.driver.getByText(text).filter({ visible: true }).first().waitFor();
  }

  /** Writes a message and sends it by Enter; returns when the answer has begun. */
  async send(text) {
    const count = await this.answers.count();
    await this.message.fill(text);
    await this.message.press('Enter');
    await until(`“${text}” gets an answer`, async () => (await this.answers.count()) > count);
  }

  /** Writes a message and waits for the whole answer; returns its text. */
  async ask(text) {
    await this.send(text);
    await this.finished();
    return this.answerText();
  }

  /** Waits until the last answer is no longer being written. */
  async finished() {
    await this.answer.and(this.driver.locator('[aria-busy=false]')).waitFor();
  }

  /** Waits until the last answer has this many letters. */
  async written(letters) {
    await until(`${letters} letters are written`, async () => (await this.answerText()).length >= letters);
  }

  /** The text of the last answer as it is seen, without its figures. */
  async answerText() {
    const texts = await this.answer.locator('.markdown').allInnerTexts();
    return texts.join('');
  }

  /** What the person wrote, also where the page skips drawing it because it is out of sight. */
  questionTexts() {
    return this.region('Messages').getByRole('article', { name: 'You' }).locator('p').allTextContents();
  }

  /** The line under the last answer. */
  get statusLine() {
    return this.answer.locator('summary');
  }

  /** The figures behind the line under the last answer, by name. */
  async figures() {
    await this.answer.locator('dl').waitFor({ state: 'attached' });
    const [names, values] = await Promise.all(['dt', 'dd'].map((cell) => this.answer.locator(cell).allTextContents()));
    return Object.fromEntries(names.map((name, index) => [name, values[index]]));
  }

  /** How many tokens of the last answer's prompt came from saved context, of how many. */
  async cached() {
    const { Prompt: words } = await this.figures();
    const [, read, cached] = /^([\d,]+) tokens? read, ([\d,]+) (?:from saved context|read before)$/.exec(words);
    return { cached: number(cached), prompt: number(read) + number(cached) };
  }

  /** Records each text that the last match of a selector has from now on; the returned function gives them. */
  async watch(selector) {
    await this.driver.evaluate((selector) => {
      const seen = ((window.seen ??= {})[selector] = []);
      const look = () => {
        const text = [...document.querySelectorAll(selector)].at(-1)?.textContent?.trim();
        if (text && text !== seen.at(-1)) seen.push(text);
      };
      new MutationObserver(look).observe(document.body, {
        subtree: true,
        childList: true,
        characterData: true,
      });
    }, selector);
    return () => this.driver.evaluate((selector) => window.seen[selector], selector);
  }
}

function number(digits) {
  return Number(digits.replaceAll(',', ''));
}

/** A text as a page shows it: white space of any length is one space. */
export function asSeen(text) {
  return text.replaceAll(/\s+/g, ' ').trim();
}
