// Measures the interface in Chromium without a core: the work for each piece of a long answer, opening and scrolling a long chat, and
// what is on disk. Prints one line of JSON for each figure: `what`, `value`, `unit`, `goal`.
import { gzipSync } from 'node:zlib';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { answerOf } from './answers.mjs';
import { root } from './core.mjs';
import { FakeCore } from './fake-core.mjs';
import { launchBrowser, Page } from './page.mjs';
import { until } from './until.mjs';

const TOKENS = Number(process.env.UI_BENCH_TOKENS ?? 32_000);
const TOKENS_PER_SECOND = 200;
const CHARS_PER_TOKEN = 4;
/** The core sends pieces of an answer this often. */
const PIECES_PER_SECOND = 30;
const NUM_MESSAGES = 2000;
const SHAPES = process.env.UI_BENCH_SHAPES?.split(',') ?? ['mixed', 'code', 'list'];

const MARK = 'measured page';
const print = (what, value, unit, goal) => console.log(JSON.stringify({ what, value, unit, goal }));
const percentile = (numbers, share) => numbers.toSorted((a, b) => a - b)[Math.floor((numbers.length - 1) * share)] ?? 0;

/**
 * Records what the main threads of `pages` do while `steps` run: the tasks by thread, with start, wall and CPU time in ms. Each page
 * leaves a mark in the trace, because a browser has other threads of this kind: of a spare process, and of pages that are gone.
 */
async function traced(browser, pages, steps) {
  const session = await browser.newBrowserCDPSession();
  const events = [];
  session.on('Tracing.dataCollected', ({ value }) => events.push(...value));
  const traceConfig = {
    includedCategories: ['toplevel', 'devtools.timeline', '__metadata'],
    excludedCategories: ['*'],
  };
  await session.send('Tracing.start', { transferMode: 'ReportEvents', traceConfig });
  for (const page of pages) await page.driver.evaluate((mark) => console.timeStamp(mark), MARK);
  await steps();
  const done = new Promise((resolve) => session.once('Tracing.tracingComplete', resolve));
  await session.send('Tracing.end');
  await done;
  await session.detach();
  const key = ({ pid, tid }) => `${pid} ${tid}`;
  const marks = events.filter(({ name, args }) => name === 'TimeStamp' && args.data?.message === MARK);
  const mains = new Set(marks.map(key));
  if (mains.size === 0) throw new Error('no page has left its mark in the trace');
  const threads = new Map([...mains].map((name) => [name, { tasks: [], costs: {}, parts: [] }]));
  for (const event of events) {
    const thread = event.ph === 'X' ? threads.get(key(event)) : undefined;
    if (!thread) continue;
    const cpu = (event.tdur ?? event.dur) / 1000;
    if (/RunTask$/.test(event.name)) thread.tasks.push({ start: event.ts / 1000, wall: event.dur / 1000, cpu });
    else {
      thread.costs[event.name] = (thread.costs[event.name] ?? 0) + cpu;
      thread.parts.push({ name: event.name, start: event.ts / 1000, cpu });
    }
  }
  return [...threads.values()].filter(({ tasks }) => tasks.length > 0);
}

/** The work of each piece: what the main thread did within the time until the next one. */
function workPerPiece({ tasks }, kind) {
  const period = 1000 / PIECES_PER_SECOND;
  const start = Math.min(...tasks.map((task) => task.start));
  const sums = new Map();
  for (const task of tasks) {
    const bucket = Math.floor((task.start - start) / period);
    sums.set(bucket, (sums.get(bucket) ?? 0) + task[kind]);
  }
  return [...sums.values()];
}

async function stream(browser) {
  const windows = [];
  for (const shape of SHAPES) {
    const core = await FakeCore.start();
    const id = core.addChat(shape, `A long answer: ${shape}`, ['Tell me all']);
    const context = await browser.newContext({ viewport: { width: 1240, height: 900 } });
    const page = new Page(await context.newPage());
    await page.open(core.url);
    await page.message.waitFor();
    await page.shows('Tell me all');
    core.emit({ type: 'message', message: core.message(id, 1, '', 'streaming') });
    windows.push({ shape, core, page, id, text: answerOf(shape, TOKENS * CHARS_PER_TOKEN) });
  }
  const step = Math.round((TOKENS_PER_SECOND * CHARS_PER_TOKEN) / PIECES_PER_SECOND);
  const pages = windows.map(({ page }) => page);
  const threads = await traced(browser, pages, async () => {
    const began = performance.now();
    for (const { core, id } of windows) {
      const segment = { kind: 'text', text: '' };
      core.emit({ type: 'segment', conversation_id: id, message_id: `${id}-1`, index: 0, segment });
    }
    const length = TOKENS * CHARS_PER_TOKEN;
    for (let offset = 0, piece = 0; offset < length; offset += step, piece++) {
      for (const { core, id, text } of windows) {
        const part = text.slice(offset, offset + step);
        core.emit({ type: 'delta', conversation_id: id, message_id: `${id}-1`, segment: 0, offset, text: part });
      }
      await pause(Math.max(0, began + ((piece + 1) * 1000) / PIECES_PER_SECOND - performance.now()));
    }
    for (const { page } of windows) await page.driver.evaluate(() => new Promise(requestAnimationFrame));
  });
  // The worst page counts.
  const worst = (kind, share) => Math.max(...threads.map((thread) => percentile(workPerPiece(thread, kind), share)));
  print(
    `${TOKENS} tokens at ${TOKENS_PER_SECOND}/s in three windows: work for a piece, p95 (CPU)`,
    worst('cpu', 0.95),
    'ms',
    8,
  );
  print(`${TOKENS} tokens: work for a piece, p95 (wall)`, worst('wall', 0.95), 'ms', 8);
  print(`${TOKENS} tokens: work for a piece, most (CPU)`, worst('cpu', 1), 'ms', 50);
  print(`${TOKENS} tokens: work for a piece, most (wall)`, worst('wall', 1), 'ms', 50);
  for (const { tasks, costs } of threads) {
    const dearest = Object.entries(costs)
      .sort(([, a], [, b]) => b - a)
      .slice(0, 8);
    const sum = tasks.reduce((total, { cpu }) => total + cpu, 0);
    console.error(
      `  ${sum.toFixed(0)} ms of CPU: ${dearest.map(([name, ms]) => `${name} ${ms.toFixed(0)}`).join(', ')}`,
    );
    console.error(
      `  p50 ${percentile(workPerPiece({ tasks }, 'cpu'), 0.5).toFixed(1)} p95 ${percentile(workPerPiece({ tasks }, 'cpu'), 0.95).toFixed(1)} p99 ${percentile(workPerPiece({ tasks }, 'cpu'), 0.99).toFixed(1)} max ${percentile(workPerPiece({ tasks }, 'cpu'), 1).toFixed(1)}`,
    );
  }
  for (const { core, page } of windows) {
    if (page.complaints.length > 0) throw new Error(`the page complained: ${page.complaints.join('\n')}`);
    await page.driver.context().close();
    core.end();
  }
}

async function longChat(browser) {
  const core = await FakeCore.start();
  const texts = Array.from({ length: NUM_MESSAGES }, (_, index) =>
    index % 2 === 0
      ? `Question ${index}: how is it built?`
      : answerOf('mixed', 300 + ((index * 7919) % 2400)).slice(0, 2400),
  );
  core.addChat('long', 'The long chat', texts);
  core.addChat('short', 'The short chat', ['One', 'Two']);
  const context = await browser.newContext({ viewport: { width: 1240, height: 900 } });
  const page = new Page(await context.newPage());
  const openings = [];
  for (let round = 0; round < 5; round++) {
    // A chat that was open is not fetched again.
    if (round === 0) await page.open(core.url);
    else await page.driver.reload();
    await page.row('The short chat').click();
    await page.shows('Two');
    const time = page.driver.evaluate(
      () =>
        new Promise((resolve) => {
          document.addEventListener(
            'click',
            ({ timeStamp }) => {
              const look = () => {
                if (document.querySelector('[data-message="long-1999"]') === null) return requestAnimationFrame(look);
                requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - timeStamp)));
              };
              look();
            },
            { capture: true, once: true },
          );
        }),
    );
    await page.row('The long chat').click();
    openings.push(await time);
  }
  print(`a chat of ${NUM_MESSAGES} messages: opened (median of 5)`, percentile(openings, 0.5), 'ms', 150);

  await page.driver.mouse.move(800, 400);
  const [thread] = await traced(browser, [page], async () => {
    for (let turn = 0; turn < 150; turn++) {
      await page.driver.mouse.wheel(0, -900);
      await pause(30);
    }
    for (const share of [0.1, 0.8, 0, 0.5]) {
      await page.driver.evaluate((share) => {
        const box = document.querySelector('section[aria-label="Messages"]');
        box.scrollTop = box.scrollHeight * share;
      }, share);
      await until('something is drawn there', () =>
        page.driver.evaluate(() => document.elementFromPoint(800, 400)?.closest('[data-message]') !== null),
      );
      await pause(300);
    }
  });
  print(
    `a chat of ${NUM_MESSAGES} messages: scrolled, longest task (CPU)`,
    Math.max(...thread.tasks.map(({ cpu }) => cpu)),
    'ms',
    50,
  );
  print(
    `a chat of ${NUM_MESSAGES} messages: scrolled, longest task (wall)`,
    Math.max(...thread.tasks.map(({ wall }) => wall)),
    'ms',
    50,
  );
  for (const task of thread.tasks.toSorted((a, b) => b.cpu - a.cpu).slice(0, 3)) {
    const within = thread.parts.filter(({ start }) => start >= task.start && start <= task.start + task.wall);
    const parts = {};
    for (const { name, cpu } of within) parts[name] = (parts[name] ?? 0) + cpu;
    const dearest = Object.entries(parts).sort(([, a], [, b]) => b - a);
    const words = dearest.slice(0, 8).map(([name, ms]) => `${name} ${ms.toFixed(1)}`);
    console.error(`  a task of ${task.cpu.toFixed(1)} ms: ${words.join(', ')}`);
  }
  if (page.complaints.length > 0) throw new Error(`the page complained: ${page.complaints.join('\n')}`);
  await context.close();
  core.end();
}

async function sizes() {
  const folder = join(root, 'ui/dist');
  const names = (await readdir(folder, { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile());
  const files = await Promise.all(
    names.map(async ({ parentPath, name }) => ({
      name,
      bytes: gzipSync(await readFile(join(parentPath, name)), { level: 9 }).length,
    })),
  );
  const later = files.filter(({ name }) => /katex|pdf/i.test(name));
  const sum = (list) => list.reduce((total, { bytes }) => total + bytes, 0) / 1e6;
  print('the interface on disk, gzipped', sum(files), 'MB', 1.5);
  print('of it, fetched only when it is needed (maths)', sum(later), 'MB', null);
}

await sizes();
const browser = await launchBrowser();
try {
  if (!process.env.UI_BENCH_SHAPES) await longChat(browser);
  await stream(browser);
} finally {
  await browser.close();
}
