// Looking for words in the messages of all chats, and opening what was found.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import { bootstrap, conversation, FakePlatform, gate, message, settle, textDocument } from '../testing/fake';
import type { ExcerptPiece, FoundMessage, Reply } from '../platform/wire';
import { withoutSignsIn } from './palette';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

const found = (conversation_id: string, change: Partial<FoundMessage> = {}): FoundMessage => ({
  document: null,
  conversation_id,
  message_id: `m-${conversation_id}`,
  role: 'assistant',
  created_at_ms: 1,
  num_messages: 1,
  excerpt: [
    { text: 'an ', is_match: false },
    { text: 'igneous', is_match: true },
    { text: ' rock', is_match: false },
  ],
  ...change,
});
const reply = (all: FoundMessage[], indexed_share = 1): Reply => ({
  type: 'found_messages',
  found: all,
  indexed_share,
});

async function open() {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({
      conversations: [
        conversation('a', { title: 'Stones', updated_at_ms: 3 }),
        conversation('b', { title: 'Igneous', updated_at_ms: 2 }),
        conversation('c', { title: 'Away', updated_at_ms: 1, is_archived: true }),
      ],
    }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages: [message('m-a')] },
  };
  const { app, clock } = await openWindow(platform);
  app.openPalette();
  await drawn();
  const type = async (text: string) => {
    await fireEvent.input(screen.getByRole('combobox', { hidden: true }), { target: { value: text } });
    clock.run();
    await drawn();
  };
  const group = (name: string) => screen.queryByRole('group', { name, hidden: true });
  const options = () => screen.getAllByRole('option', { hidden: true }).map(({ textContent }) => textContent?.trim());
  return { app, clock, group, options, platform, type };
}

test('messages are found beside titles, and open where they are', async () => {
  const { app, group, platform, type } = await open();
  platform.answers.search_messages = reply([found('a', { num_messages: 3 }), found('gone')]);
  await type('igneous');
  const messages = group('In messages and documents') as HTMLElement;
  expect(within(messages).getAllByRole('option', { hidden: true })).toHaveLength(1);
  expect(within(messages).getByText('igneous').tagName).toBe('MARK');
  expect(messages.textContent).toContain('+2 more');
  // The chat whose title it is comes first.
  expect(screen.getAllByRole('option', { hidden: true })[0]?.textContent).toContain('Igneous');
  await fireEvent.click(within(messages).getByRole('option', { hidden: true }));
  await settle();
  expect(platform.asked).toContainEqual({ type: 'show_message', conversation_id: 'a', message_id: 'm-a' });
  expect(app.chat.selectedId).toBe('a');
  await drawn();
  await drawn();
  const shown = document.querySelector<HTMLElement>('[data-goal="m-a"]');
  expect([shown?.dataset.isMarked, document.activeElement === shown]).toEqual(['true', true]);
});

test('a part of an answer is shown without signs of Markdown', () => {
  const piece = (text: string, is_match = false) => ({ text, is_match });
  const check = (given: ExcerptPiece[], expected: ExcerptPiece[]) => expect(withoutSignsIn(given)).toEqual(expected);
  check(
    [piece('…is **'), piece('igneous', true), piece('**, `fine` and _old_')],
    [piece('…is '), piece('igneous', true), piece(', fine and old')],
  );
  check(
    [piece('…# Kinds of '), piece('rock', true), piece(' ## Old > said')],
    [piece('…Kinds of '), piece('rock', true), piece(' Old said')],
  );
  check(
    [piece('see [the '), piece('rock', true), piece('](https://a.example/b_c) there')],
    [piece('see the '), piece('rock', true), piece(' there')],
  );
  check(
    [piece('2 * 3, a_'), piece('b_c', true), piece(' [1]')],
    [piece('2 * 3, a_'), piece('b_c', true), piece(' [1]')],
  );
});

test('a document that has the words opens at their place', async () => {
  const { app, group, platform, type } = await open();
  const lease = textDocument('lease');
  const excerpt = [
    { text: '…the ', is_match: false },
    { text: 'security', is_match: true },
    { text: ' ', is_match: false },
    { text: 'deposit', is_match: true },
    { text: ' is…', is_match: false },
  ];
  const text = 'A security deposit.\nOf the security deposit is said more.';
  platform.answers.search_messages = reply([
    found('a'),
    found('a', { document: { document: lease, at_utf16: 27 }, excerpt }),
    found('b', { document: { document: textDocument('deposit'), at_utf16: null }, excerpt: [] }),
  ]);
  platform.answers.get_document = { type: 'document_text', document: lease, text };
  await type('security deposit');
  const hits = within(group('In messages and documents') as HTMLElement).getAllByRole('option', { hidden: true });
  expect(hits.map(({ textContent }) => textContent?.includes('lease.txt: …the security deposit is…'))).toEqual([
    false,
    true,
    false,
  ]);
  expect(hits[2]?.textContent).toContain('Document: deposit.txt');
  await fireEvent.click(hits[1] as HTMLElement);
  await settle();
  await drawn();
  expect(app.chat.selectedId).toBe('a');
  expect(platform.asked).toContainEqual({ type: 'show_message', conversation_id: 'a', message_id: 'm-a' });
  const reader = screen.getByRole('dialog', { name: 'lease.txt' });
  expect(within(reader).getByRole<HTMLInputElement>('searchbox').value).toBe('security deposit');
  expect(within(reader).getByText('2 of 2')).toBeTruthy();
});

test('the chosen entry stays chosen when messages come', async () => {
  const { clock, platform, options } = await open();
  const late = gate<Reply>();
  platform.answers.search_messages = late.promise;
  const field = screen.getByRole('combobox', { hidden: true });
  await fireEvent.input(field, { target: { value: 's' } });
  clock.run();
  await drawn();
  await fireEvent.keyDown(field, { key: 'ArrowDown' });
  const chosen = () => screen.getByRole('option', { selected: true, hidden: true }).textContent?.trim();
  const before = chosen();
  const number = options().length;
  late.open(reply([found('a')]));
  await drawn();
  expect([chosen(), options().length]).toEqual([before, number + 1]);
});

test('Enter before the messages are there opens what is found, and a new chat only if nothing is', async () => {
  const { app, clock, platform } = await open();
  const press = async (text: string) => {
    const field = screen.getByRole('combobox', { hidden: true });
    await fireEvent.input(field, { target: { value: text } });
    await fireEvent.keyDown(field, { key: 'Enter' });
    expect(app.navigation.isPaletteOpen).toBe(true);
    clock.run();
    await drawn();
    expect(app.navigation.isPaletteOpen).toBe(false);
  };
  platform.answers.search_messages = reply([found('a')]);
  await press('an igneous rock');
  await settle();
  expect(app.chat.selectedId).toBe('a');

  app.openPalette();
  await drawn();
  platform.answers.search_messages = reply([]);
  await press('a metamorphic rock');
  expect(app.chat.selectedId).toBeNull();
  expect(app.chat.draft).toBe('a metamorphic rock');
});

test('an answer about words that are not wanted any more is left out', async () => {
  const { app, clock, platform } = await open();
  const late = gate<Reply>();
  platform.answers.search_messages = late.promise;
  app.search.look('first');
  clock.run();
  app.search.look('second');
  late.open(reply([found('a')]));
  await settle();
  expect(app.search.found).toEqual([]);
  app.search.look(' ');
  expect(app.search.found).toEqual([]);
});

test('the palette says that older chats are still being indexed', async () => {
  const { platform, type } = await open();
  platform.answers.search_messages = reply([], 0.4);
  await type('stone');
  expect(screen.getByText('Older chats are still being indexed (40%).')).toBeTruthy();
});

test('commands that begin as the query does come before messages', async () => {
  const { options, platform, type } = await open();
  platform.answers.search_messages = reply([found('a')]);
  await type('monitor');
  expect(options()[0]).toContain('Monitor');
});

test('an archived chat is found, but is not among the recent ones', async () => {
  const { options, type } = await open();
  expect(options().some((text) => text?.includes('Away'))).toBe(false);
  await type('away');
  expect(options()[0]).toContain('Away');
});
