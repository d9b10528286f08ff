// What can be done with messages: other versions, branches, deletions, and what the window shows of it.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import { CallError } from '../platform/platform';
import type { Message, Reply } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, gate, message, model, stats, textDocument } from '../testing/fake';
import { branchTitle } from './conversations.svelte';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

const question = message('u', { role: 'user', text: 'Why?' });
const answer = message('m', { parent_id: 'u', text: 'Because.', stats: stats(), model: 'owner/model' });

async function open(messages: Message[] = [question, answer]) {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({
      conversations: [conversation('a'), conversation('b', { updated_at_ms: 0 })],
      models: [model('owner/model'), model('owner/other')],
    }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages },
  };
  const { app } = await openWindow(platform);
  /** The last command that is no question: those about context, saved context and drafts follow every change. */
  const lastAsked = () => platform.asked.findLast(({ type }) => !type.startsWith('get_'));
  return { platform, app, lastAsked };
}

const button = (name: string) => screen.getByRole<HTMLButtonElement>('button', { name });
const press = async (name: string) => {
  await fireEvent.click(button(name));
  await drawn();
};
const inQuestion = () => within(screen.getByRole('article', { name: 'You' }));
const inAnswer = () => within(screen.getAllByRole('article', { name: 'Answer' }).at(-1) as HTMLElement);
const answered = (...messages: Message[]): Reply => ({ type: 'sent', conversation: conversation('a'), messages });

test('what a person writes runs from the right where its letters do', async () => {
  const { app, platform } = await open([{ ...question, text: 'لماذا؟' }]);
  const line = inQuestion().getByText('لماذا؟');
  expect([line.dir, screen.getByRole('textbox', { name: 'Message' }).dir]).toEqual(['auto', 'auto']);
  await press('Edit');
  expect(screen.getByRole('textbox', { name: 'Your message' }).dir).toBe('auto');
  platform.emit({ type: 'message', message: message('n', { parent_id: 'u', status: 'streaming' }) });
  await drawn();
  app.chat.draft = 'ولماذا الآن؟';
  await app.chat.send();
  await drawn();
  expect(screen.getByText('ولماذا الآن؟').dir).toBe('auto');
});

test('of many documents the first are shown, and all on demand', async () => {
  const documents = Array.from({ length: 31 }, (_, index) => textDocument(`d${index}`, { name: `file${index}.txt` }));
  await open([{ ...question, documents }]);
  const chips = () => inQuestion().getAllByRole('button', { name: /: open$/ }).length;
  expect(chips()).toBe(6);
  await press('Show all 31 documents');
  expect(chips()).toBe(31);
  await press('Show less');
  expect(chips()).toBe(6);
});

test('what writes an ended answer again with another model has the sign of its kind', async () => {
  await open([question, { ...answer, status: 'interrupted' }]);
  expect(button('Answer with another model').querySelectorAll('svg').length).toBe(2);
});

test('a message is edited in its place and sent beside the earlier version', async () => {
  const { platform, app, lastAsked } = await open();
  await press('Edit');
  const field = screen.getByRole<HTMLTextAreaElement>('textbox', { name: 'Your message' });
  expect([field.value, document.activeElement]).toEqual(['Why?', field]);
  await fireEvent.keyDown(field, { key: 'Escape' });
  await drawn();
  expect(document.activeElement).toBe(button('Edit'));

  await press('Edit');
  const again = screen.getByRole<HTMLTextAreaElement>('textbox', { name: 'Your message' });
  await fireEvent.input(again, { target: { value: 'Why not?' } });
  platform.answers.edit_message = new CallError('storage', 'The disk is full.');
  await fireEvent.keyDown(again, { key: 'Enter' });
  await drawn();
  expect(app.chat.thread?.editing?.text).toBe('Why not?');
  const edited = message('v', { role: 'user', text: 'Why not?', versions: ['u', 'v'] });
  platform.answers.edit_message = answered(edited, message('n', { parent_id: 'v', status: 'streaming' }));
  await fireEvent.keyDown(again, { key: 'Enter' });
  await drawn();
  expect(lastAsked()).toEqual({ type: 'edit_message', conversation_id: 'a', message_id: 'u', text: 'Why not?' });
  expect(app.chat.thread?.messages.map(({ id }) => id)).toEqual(['v', 'n']);
  expect(inQuestion().getByRole('group', { name: 'Version 2 of 2' })).toBeTruthy();
  expect(document.activeElement).toBe(screen.getByRole('textbox', { name: 'Message' }));
});

test('an arrow in the empty composer edits the last message', async () => {
  await open();
  const composer = screen.getByRole('textbox', { name: 'Message' });
  await fireEvent.keyDown(composer, { key: 'ArrowUp' });
  await drawn();
  expect(screen.getByRole('textbox', { name: 'Your message' })).toBeTruthy();
});

test('versions are walked through by buttons and by arrow keys, and keep the focus', async () => {
  const { platform, lastAsked } = await open([question, { ...answer, versions: ['m', 'n'] }]);
  const pager = () => inAnswer().getByRole('group', { name: /^Version/ });
  expect(within(pager()).getByRole<HTMLButtonElement>('button', { name: 'Previous version' }).disabled).toBe(true);
  within(pager()).getByRole('button', { name: 'Next version' }).focus();
  await fireEvent.keyDown(within(pager()).getByRole('button', { name: 'Next version' }), { key: 'ArrowRight' });
  await drawn();
  expect(lastAsked()).toEqual({ type: 'show_version', conversation_id: 'a', message_id: 'n' });
  const other = message('n', { parent_id: 'u', text: 'So.', versions: ['m', 'n'], model: 'owner/other' });
  platform.emit({ type: 'branch', conversation_id: 'a', after: 'u', messages: [other] });
  await drawn();
  expect(inAnswer().getByText('So.')).toBeTruthy();
  expect(inAnswer().getByText('other').title).toBe('Written by owner/other');
  expect(document.activeElement).toBe(within(pager()).getByRole('button', { name: 'Previous version' }));
});

test('an answer is written again by another model', async () => {
  const { lastAsked } = await open();
  await press('Answer with another model');
  await fireEvent.click(screen.getByRole('menuitem', { name: 'other' }));
  await drawn();
  expect(lastAsked()).toEqual({
    type: 'regenerate',
    conversation_id: 'a',
    message_id: 'm',
    model: 'owner/other',
  });
});

test('an answer that broke off is continued, and one that cannot go on is not offered', async () => {
  const { platform, lastAsked } = await open([question, { ...answer, status: 'stopped', can_continue: true }]);
  screen.getByText('You stopped this answer. Let it go on, or have it written again.');
  await press('Continue');
  expect(lastAsked()).toEqual({ type: 'continue_answer', conversation_id: 'a', message_id: 'm' });
  platform.emit({ type: 'message', message: { ...answer, status: 'stopped', error: 'The disk broke.' } });
  await drawn();
  expect(screen.queryByRole('button', { name: 'Continue' })).toBeNull();
  screen.getByText('The disk broke. Regenerate to try again.');
});

test('a chat is branched into a new one, which opens', async () => {
  const { platform, app, lastAsked } = await open();
  const copy = conversation('c', { title: 'Branch: Title a', updated_at_ms: 9 });
  platform.answers.branch_conversation = {
    type: 'conversation',
    conversation: copy,
    messages: [message('x', { role: 'user', text: 'Why?', conversation_id: 'c' })],
  };
  await fireEvent.click(inQuestion().getByRole('button', { name: 'Branch into a new chat' }));
  await drawn();
  expect(lastAsked()).toMatchObject({ message_id: 'u', title: 'Branch: Title a' });
  expect(app.chat.selectedId).toBe('c');
  // A question without an answer can be answered.
  platform.answers.regenerate = answered(message('y', { parent_id: 'x', conversation_id: 'c', status: 'streaming' }));
  await press('Answer');
  expect(lastAsked()).toMatchObject({ type: 'regenerate', conversation_id: 'c', message_id: 'x' });
});

test.each<[title: string, branch_of: string | null, others: string[], branch: string]>([
  ['Walls', null, [], 'Branch: Walls'],
  ['Branch: Walls', 'Walls', ['Branch: Walls'], 'Branch 2: Walls'],
  ['Walls', null, ['Branch: Walls', 'Branch 2: Walls'], 'Branch 3: Walls'],
  ['Zweig: Walls', 'Walls', [], 'Branch: Walls'],
  ['Branch: New chat', '', [], 'Branch: New chat'],
  // A title that a person has written is kept.
  ['Branch 7: Walls', null, [], 'Branch: Branch 7: Walls'],
  ['Branch: Branch 7: Walls', 'Branch 7: Walls', ['Branch: Branch 7: Walls'], 'Branch 2: Branch 7: Walls'],
])('a branch of %s (of %s) beside %s is %s', (title, branch_of, others, expected) => {
  expect(
    branchTitle(
      { title, branch_of },
      others.map((title) => ({ title })),
    ),
  ).toBe(expected);
});

test('a deleted message comes back by the button and by the shortcut', async () => {
  const { platform, app, lastAsked } = await open();
  platform.answers.delete_message = { type: 'messages_deleted', deletion_id: 'd', num_messages: 2 };
  await fireEvent.click(inQuestion().getByRole('button', { name: 'More' }));
  await drawn();
  await fireEvent.click(screen.getByRole('menuitem', { name: 'Delete this and all that follows' }));
  await drawn();
  expect(lastAsked()).toEqual({ type: 'delete_message', conversation_id: 'a', message_id: 'u', with_following: true });
  platform.emit({ type: 'branch', conversation_id: 'a', after: null, messages: [] });
  await drawn();
  screen.getByText('Deleted 2 messages.');
  app.chat.select('b');
  expect(app.undo.undo()).toBe(true);
  await drawn();
  expect(lastAsked()).toMatchObject({ type: 'restore_messages', conversation_id: 'a', deletion_id: 'd' });
  expect(app.chat.selectedId).toBe('a');
  expect(app.undo.undo()).toBe(false);
});

test('an untitled chat whose messages were deleted is there when it is left, so that Undo brings them back', async () => {
  const { platform, app, lastAsked } = await open();
  platform.answers.delete_message = { type: 'messages_deleted', deletion_id: 'd', num_messages: 2 };
  app.chat.hasNoDocuments = () => true;
  const deleting = app.chat.removeMessage('u', true);
  platform.emit({ type: 'branch', conversation_id: 'a', after: null, messages: [] });
  platform.emit({ type: 'conversation', conversation: conversation('a', { title: '', has_messages: false }) });
  await deleting;
  app.chat.select('b');
  await drawn();
  expect(platform.askedTypes()).not.toContain('delete_conversations');
  expect(app.undo.undo()).toBe(true);
  await drawn();
  expect(lastAsked()).toMatchObject({ type: 'restore_messages', conversation_id: 'a', deletion_id: 'd' });
  expect(app.chat.selectedId).toBe('a');
});

test('while the chat is answered what cannot be done says why', async () => {
  const { app, platform } = await open();
  const writing = message('n', { parent_id: 'v', status: 'streaming', text: 'So' });
  platform.emit({ type: 'message', message: message('v', { role: 'user', parent_id: 'm', text: 'And?' }) });
  platform.emit({ type: 'message', message: writing });
  await drawn();
  const first = within(screen.getAllByRole('article', { name: 'You' })[0] as HTMLElement);
  for (const name of ['Edit', 'Branch into a new chat', 'More']) {
    const found = first.getByRole<HTMLButtonElement>('button', { name });
    expect([found.disabled, found.title]).toEqual([true, 'Not while this chat is answered']);
  }
  expect(first.getByRole<HTMLButtonElement>('button', { name: 'Copy message' }).disabled).toBe(false);
  const before = platform.asked.length;
  await app.chat.showVersion('m', { part: 'next' });
  await app.chat.removeMessage('m', false);
  await app.chat.regenerate('m');
  app.chat.edits.open('u');
  expect([platform.asked.length, app.chat.thread?.editing]).toEqual([before, null]);
  // Another chat is not held up.
  app.chat.select('b');
  expect(app.chat.whyBusy).toBeNull();
});

test('nothing else is done while one thing is under way', async () => {
  const { app, platform } = await open([question, { ...answer, versions: ['m', 'n'] }]);
  const reply = gate<Reply>();
  platform.answers.show_version = reply.promise;
  const shown = app.chat.showVersion('n', { part: 'next' });
  expect(app.chat.whyBusy).toBe('One moment…');
  reply.open({ type: 'done' });
  await shown;
  expect(app.chat.whyBusy).toBeNull();
});
