// Every state that a scene makes up, in light, in dark and in the colours that a system dictates: axe finds nothing serious. Nothing is
// lost in a narrow window, or at 200 %, in either language; and something has the focus all the time.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { COLOUR_RULES, findings } from './axe.mjs';
import { launchBrowser } from './page.mjs';
import { SCENES } from './scenes/index.mjs';
import { NARROW, speak, Stage, WIDE } from './stage.mjs';

const COLOURS = [
  { colorScheme: 'light', forcedColors: 'none' },
  { colorScheme: 'dark', forcedColors: 'none' },
  { colorScheme: 'light', forcedColors: 'active' },
];
/** The second is what twice as large makes of a wide window. */
const SMALL = [NARROW, { width: WIDE.width / 2, height: WIDE.height / 2 }];
const LIMIT_MS = 900_000;
/** What has lost the focus waits for half a second before the page gives it to another; a busy machine needs longer. */
const FOCUS_LIMIT_MS = 30_000;
let browser;
after(async () => (await browser)?.close());

for (const [name, scene] of Object.entries(SCENES)) {
  test(`every state of the scene “${name}” can be seen and used by everyone`, { timeout: LIMIT_MS }, async () => {
    browser ??= launchBrowser();
    const found = [];
    let numStates = 0;
    const look = async (page, state, { isWide, isNarrow }) => {
      numStates++;
      for (const [what, problems] of await check(page, isWide ? [] : isNarrow ? [NARROW] : SMALL))
        found.push(...problems.map((problem) => `${state}, ${what}: ${problem}`));
      if (!isNarrow) await page.driver.setViewportSize(WIDE);
    };
    await new Stage(await browser, look).play(scene);
    assert.ok(numStates > 0, 'the scene shows nothing');
    assert.deepEqual(found, []);
  });
}

/** What is wrong with a page as it is, by where that is seen. */
async function check(page, sizes) {
  const { driver } = page;
  const wrong = [['focus', (await hasFocus(page)) ? [] : ['the page itself has the focus']]];
  for (const [index, colours] of COLOURS.entries()) {
    await driver.emulateMedia({ ...colours, reducedMotion: 'reduce' });
    wrong.push([
      `${colours.forcedColors === 'active' ? 'forced' : colours.colorScheme} colours`,
      // Names, roles and structure are the same in all colours.
      await findings(driver, index === 0 ? [] : COLOUR_RULES),
    ]);
  }
  await driver.emulateMedia({ colorScheme: 'light', forcedColors: 'none' });
  for (const size of sizes) {
    await driver.setViewportSize(size);
    for (const language of ['en-US', 'de']) {
      await speak(page, language);
      wrong.push([`${size.width} px, ${language}`, [...(await lost(driver)), ...(await unreachable(driver))]]);
    }
    await speak(page, 'en-US');
    wrong.push([`${size.width} px, focus`, (await hasFocus(page)) ? [] : ['the page itself has the focus']]);
  }
  return wrong;
}

/** Whether something has the focus, or gets it soon: where a control goes with its own press, the nearest one takes over. */
function hasFocus({ driver }) {
  const isAnywhere = () => document.activeElement !== null && document.activeElement !== document.body;
  return driver.waitForFunction(isAnywhere, null, { timeout: FOCUS_LIMIT_MS }).then(
    () => true,
    () => false,
  );
}

/** What a window this small cuts off: what stands beyond its edges, and words wider or higher than what they stand in. */
function lost(driver) {
  return driver.evaluate(async () => {
    // What answers to the size does so before the next frame is drawn.
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const name = (element) =>
      `${element.localName} “${(element.ariaLabel ?? element.textContent).trim().slice(0, 50)}”`;
    const scrolls = (element) => {
      for (let box = element.parentElement; box; box = box.parentElement) {
        const { overflowX } = getComputedStyle(box);
        if ((overflowX === 'auto' || overflowX === 'scroll') && box.scrollWidth > box.clientWidth) return true;
      }
      return false;
    };
    const found = [];
    const { scrollingElement } = document;
    if (scrollingElement.scrollWidth > innerWidth) found.push(`the page is ${scrollingElement.scrollWidth} px wide`);
    for (const element of document.querySelectorAll(
      'button, a, input, select, textarea, summary, h1, h2, h3, p, dt, dd, label',
    )) {
      if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
      if (element.closest('[inert], .visually-hidden')) continue;
      const box = element.getBoundingClientRect();
      if (box.width < 2 || box.height < 2) continue;
      if ((box.right > innerWidth + 1 || box.left < -1) && !scrolls(element))
        found.push(`${name(element)} ends at ${box.right} px`);
      const { overflowX, textOverflow } = getComputedStyle(element);
      const isCut = element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0;
      if (isCut && overflowX === 'hidden' && textOverflow !== 'ellipsis') found.push(`${name(element)} is cut`);
      if (isCut && overflowX === 'visible' && element.matches('button')) found.push(`${name(element)} is too narrow`);
    }
    // Letters reach a little beyond their line; what is shortened on purpose ends with an ellipsis.
    const SLACK = 4;
    for (const element of document.body.querySelectorAll('*')) {
      if (element.scrollHeight <= element.clientHeight + SLACK || element.clientHeight < 8) continue;
      const { overflowY, webkitLineClamp } = getComputedStyle(element);
      if (!['hidden', 'clip'].includes(overflowY) || webkitLineClamp !== 'none') continue;
      if (element.closest('[inert], .visually-hidden, svg') || !element.checkVisibility({ opacityProperty: true }))
        continue;
      if (element.textContent.trim() !== '') found.push(`${name(element)} is cut at its lower edge`);
    }
    return found;
  });
}

/** The controls that scrolling does not bring into the window. */
function unreachable(driver) {
  return driver.evaluate(() => {
    const found = [];
    const modal = [...document.querySelectorAll('dialog:modal')].at(-1);
    const boxes = [...document.querySelectorAll('*')].filter(
      ({ scrollHeight, clientHeight, scrollWidth, clientWidth }) =>
        scrollHeight > clientHeight || scrollWidth > clientWidth,
    );
    const before = boxes.map((box) => [box, box.scrollTop, box.scrollLeft, getComputedStyle(box)]);
    // The browser scrolls these too, as no person can.
    const hidden = before.filter(([, , , { overflowY }]) => ['hidden', 'clip'].includes(overflowY));
    for (const element of (modal ?? document).querySelectorAll('button, a[href], input, select, textarea, summary')) {
      if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
      if (element.closest('[inert], .visually-hidden')) continue;
      element.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' });
      const isCut = hidden.some(([box, top]) => box.contains(element) && Math.abs(box.scrollTop - top) > 1);
      const { left, right, top, bottom } = element.getBoundingClientRect();
      if (right - left < 2 || bottom - top < 2) continue;
      const [x, y] = [(left + right) / 2, (top + bottom) / 2];
      const name = `${element.localName} “${(element.ariaLabel ?? element.textContent).trim().slice(0, 50)}”`;
      if (isCut || x < 0 || y < 0 || x > innerWidth || y > innerHeight) {
        found.push(`${name} cannot be scrolled to`);
        continue;
      }
      const hit = document.elementFromPoint(x, y);
      // A menu stands over the page as long as it is open.
      if (hit?.closest('[popover]') && !element.closest('[popover]')) continue;
      const label = element.closest('label');
      if (hit && !element.contains(hit) && !hit.contains(element) && !label?.contains(hit))
        found.push(`${name} is under ${hit.localName}.${hit.className}`);
    }
    for (const [box, top, left] of before) box.scrollTo({ top, left, behavior: 'instant' });
    return found;
  });
}
