// Texts that attack a page, as names: of chats, models and files. As answers they are in ui/markdown/Markdown.test.ts.
import { screen } from '@testing-library/svelte';
import { expect, test, vi } from 'vitest';
import { fileName } from './platform/platform';
import hostile from './testing/hostile.json';
import { bootstrap, conversation, download, FakePlatform, message, model } from './testing/fake';
import { drawn, openWindow, useWindow } from './testing/window';

useWindow();

const texts = Object.values(hostile).flat();

/** Elements and attributes of the page that come from no component of ours. */
function strangers(): string[] {
  const found = document.body.querySelectorAll(
    'img, script, iframe, object, embed, form[action], base, meta, video, audio, math, foreignObject, animate, set, use, image',
  );
  const handlers = [...document.body.querySelectorAll('*')].flatMap((element) =>
    element.getAttributeNames().filter((name) => /^on|^srcdoc$|^ping$|^formaction$/.test(name)),
  );
  const links = [...document.body.querySelectorAll('a[href]')].map((link) => link.getAttribute('href') ?? '');
  return [
    ...[...found].map(({ localName }) => localName),
    ...handlers,
    ...links.filter((href) => !/^(https?:|mailto:|#)/.test(href)),
  ];
}

test('titles and messages of people', async () => {
  const ran = vi.fn();
  vi.stubGlobal('ran', ran);
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({ conversations: texts.map((title, index) => conversation(`c${index}`, { title })) }),
    get_conversation: {
      type: 'conversation',
      conversation: conversation('c0'),
      messages: texts.slice(0, 6).map((text, index) => message(`m${index}`, { role: 'user', text })),
    },
  };
  await openWindow(platform);
  expect(screen.getAllByRole('article', { name: 'You' })).toHaveLength(6);
  const rows = document.querySelectorAll('[aria-label="Chats"] button, nav button');
  expect(rows.length).toBeGreaterThan(texts.length / 2);
  expect(strangers()).toEqual([]);
  expect(ran).not.toHaveBeenCalled();
});

test('names of models and of their files', async () => {
  const ran = vi.fn();
  vi.stubGlobal('ran', ran);
  const platform = new FakePlatform();
  const files = texts.slice(0, 50).map((path) => ({ path, bytes: 1, total_bytes: 2, state: 'running' as const }));
  platform.answers = {
    bootstrap: bootstrap({
      models: texts.map((name) => model(name)),
      downloads: [download('owner/loading', { files }), ...texts.slice(0, 50).map((name) => download(`owner/${name}`))],
    }),
  };
  const { app } = await openWindow(platform);
  for (const tab of ['here', 'discover'] as const) {
    app.openModels(tab);
    await drawn();
    expect(strangers(), tab).toEqual([]);
  }
  app.openPalette();
  await drawn();
  expect(strangers()).toEqual([]);
  expect(ran).not.toHaveBeenCalled();
});

test.each(texts)('%j as the name of a saved file', (text) => {
  const name = fileName(text, 'txt', 'Code');
  expect(name).toMatch(/^[^/\\:*?"<>|\p{Cc}\p{Cf}]+\.txt$/u);
  expect(name.startsWith('.')).toBe(false);
});
