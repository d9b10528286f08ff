// Texts that attack a page, as names: of chats, models, files and documents, and as the text of a document. As answers they are in
// ui/markdown/Markdown.test.ts, and as web pages that become text in tests/e2e/documents.test.mjs: only a browser shows what it fetches.
import { fireEvent, screen } from '@testing-library/svelte';
import { expect, test, vi } from 'vitest';
import { ofConversation } from './documents/documents.svelte';
import { fileName } from './platform/platform';
import hostile from './testing/hostile.json';
import { bootstrap, conversation, download, FakePlatform, message, model, textDocument } from './testing/fake';
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

test('documents and their names, as chips and in the reader', async () => {
  const ran = vi.fn();
  vi.stubGlobal('ran', ran);
  const platform = new FakePlatform();
  const documents = texts.map((name, index) => textDocument(`d${index}`, { name }));
  const reading = { type: 'failed' as const, why: texts[0] ?? '' };
  const attached = { of: ofConversation('c0'), beginning: documents.slice(0, 50), documents, reading };
  platform.answers = {
    bootstrap: bootstrap({ conversations: [conversation('c0')] }),
    get_conversation: {
      type: 'conversation',
      conversation: conversation('c0'),
      messages: [message('m0', { role: 'user', text: 'Why?', documents: documents.slice(0, 50) })],
    },
    get_documents: { type: 'documents', attached },
    get_document: { type: 'document_text', document: documents[0] ?? textDocument('d'), text: texts.join('\n') },
  };
  const { app } = await openWindow(platform);
  await drawn();
  await fireEvent.click(screen.getByRole('button', { name: /^Show all \d+ documents$/ }));
  await drawn();
  expect(screen.getAllByRole('button', { name: /: open$/ })).toHaveLength(documents.length + 100);
  expect(strangers()).toEqual([]);
  for (const shown of documents.slice(0, 20)) {
    await app.documents.show(shown);
    await drawn();
    expect(document.querySelector('dialog[open]')?.textContent).toContain('javascript:');
    expect(strangers(), shown.name).toEqual([]);
  }
  app.documents.closeReader();
  const files = texts.map((name) => ({ name, bytes: 1, read: async () => new Uint8Array([65]) }));
  await app.documents.drop({ folder: texts[1] ?? '', files, isCut: false });
  await drawn();
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
