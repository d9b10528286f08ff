// Documents in the window: attached, read, removed, looked into, and offered from the clipboard and from folders.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test, vi } from 'vitest';
import type { Command, Document, DocumentReading, Reply } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, gate, message, status, textDocument } from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';
import { DocumentStore, ofConversation, ofFolder } from './documents.svelte';
import type { SourceFile } from './sources';

useWindow();

const text = (name: string, content = 'Stone on stone.'): SourceFile => ({
  name,
  bytes: content.length,
  read: async () => new TextEncoder().encode(content),
});

/** A window with a chat, and a core that attaches what it is given. */
async function open(reading: DocumentReading = { type: 'waiting' }, documents: Document[] = []) {
  const platform = new FakePlatform();
  let held = documents;
  let numAttached = 0;
  const attached = () => ({ of: ofConversation('a'), beginning: [], documents: held, reading });
  const answer = () => ({ type: 'documents' as const, attached: attached() });
  platform.answers = {
    bootstrap: bootstrap({ conversations: [conversation('a')] }),
    get_conversation: { type: 'conversation', conversation: conversation('a'), messages: [] },
    new_conversation: { type: 'conversation', conversation: conversation('a', { title: '' }), messages: [] },
    get_documents: answer,
    attach_documents: (command: Command) => {
      if (command.type === 'attach_documents')
        held = [
          ...held,
          ...command.documents.map(({ name }) => textDocument(`d${numAttached++}`, { name, tokens: null })),
        ];
      return answer();
    },
    remove_document: () => {
      held = held.slice(1);
      return answer();
    },
    restore_document: () => {
      held = documents;
      return answer();
    },
    get_document: {
      type: 'document_text',
      document: textDocument('a'),
      text: 'One stone.\nTwo stones.\nThree Stones.',
    },
  };
  const opened = await openWindow(platform);
  await drawn();
  return { ...opened, platform };
}

const emitReading = (platform: FakePlatform, reading: DocumentReading) =>
  platform.emit({ type: 'documents_reading', of: ofConversation('a'), reading });

test('whether documents were read is asked again once a model is loaded', async () => {
  const { platform } = await open({ type: 'unread' }, [textDocument('a')]);
  const numAsked = () =>
    platform.asked.filter((command) => command.type === 'get_documents' && command.of.type === 'conversation').length;
  const change = (fingerprint: string | null, process_bytes: number) => {
    const models = fingerprint === null ? [] : status.models;
    platform.emit({ type: 'status', status: { ...status, model_fingerprint: fingerprint, models, process_bytes } });
  };
  change(null, 1);
  await drawn();
  const before = numAsked();
  change('f', 1);
  await drawn();
  expect(numAsked()).toBe(before + 1);
  change('f', 2);
  await drawn();
  expect(numAsked()).toBe(before + 1);
});

test('chosen files are attached in one command, and what cannot be is said', async () => {
  const { platform } = await open();
  platform.chosenDocuments = [text('a.txt'), text('b.png'), text('c.md')];
  await fireEvent.click(screen.getByRole('button', { name: 'Attach files' }));
  await expect.poll(() => platform.askedTypes()).toContain('attach_documents');
  const attached = platform.asked.filter((command) => command.type === 'attach_documents');
  expect(attached.map(({ documents }) => documents.map(({ name, kind }) => [name, kind]))).toEqual([
    [
      ['a.txt', 'text'],
      ['c.md', 'markdown'],
    ],
  ]);
  const area = screen.getByRole('region', { name: 'Documents' });
  await expect.poll(() => within(area).queryAllByRole('button', { name: /: open$/ }).length).toBe(2);
  expect(within(area).getByRole('alert').textContent).toContain('“b.png” isn’t text');
  await fireEvent.click(within(area).getByRole('button', { name: 'Close' }));
  expect(within(area).queryByRole('alert')).toBeNull();
});

test('the files of a folder stand in the order in which people count, each with its size', async () => {
  const { app } = await open();
  const names = ['sub/file10.txt', 'sub/file2.txt', 'a.md', 'sub/file1.txt'];
  const files = names.map((name) => text(name, 'x'.repeat(name.length)));
  await app.documents.drop({ folder: 'notes', files, isCut: false });
  await drawn();
  const rows = within(screen.getByRole('dialog', { name: /notes/ })).getAllByRole('listitem');
  expect(rows.map((row) => [...row.querySelectorAll('bdi, .amount')].map(({ textContent }) => textContent))).toEqual([
    ['a.md', '4 B'],
    ['sub/file1.txt', '13 B'],
    ['sub/file2.txt', '13 B'],
    ['sub/file10.txt', '14 B'],
  ]);
});

test('files with the same problem are told in one sentence', async () => {
  const { app, platform } = await open();
  const photos = Array.from({ length: 60 }, (_, index) => text(`photo${index + 1}.png`));
  platform.chosenDocuments = [...photos, text('none.txt', ''), text('a.txt'), text('blank.txt', '')];
  await fireEvent.click(screen.getByRole('button', { name: 'Attach files' }));
  await expect.poll(() => platform.askedTypes()).toContain('attach_documents');
  expect(app.documents.problemsOf('a')).toEqual([
    '60 files aren’t text: “photo1.png”, “photo2.png”, and 58 others. Text, code, Markdown, CSV, HTML and PDF files can be attached.',
    '2 files are empty: “none.txt” and “blank.txt”. There is nothing to read in them.',
  ]);
});

test('an edited message loses a document and gets another, and nothing of it stands in the composer', async () => {
  const { app, platform } = await open();
  const held = [textDocument('x', { name: 'x.txt' }), textDocument('y', { name: 'y.txt' })];
  const question = message('u', { role: 'user', text: 'Why?', documents: held });
  platform.emit({ type: 'message', message: question });
  await drawn();
  const composed = () => screen.queryByRole('region', { name: 'Documents' });
  const chips = () => screen.queryAllByRole('button', { name: /: open$/ }).map((chip) => chip.textContent?.trim());
  const edit = async () => {
    await fireEvent.click(screen.getByRole('button', { name: 'Edit' }));
    await drawn();
  };
  await edit();
  expect(chips().length).toBe(2);

  // What was taken out comes back where it was.
  await fireEvent.click(screen.getByRole('button', { name: 'Remove x.txt' }));
  await drawn();
  expect(document.activeElement).toBe(screen.getByRole('textbox', { name: 'Your message' }));
  await fireEvent.click(screen.getByRole('button', { name: 'Undo' }));
  await drawn();
  expect(app.documents.edited.map(({ name }) => name)).toEqual(['x.txt', 'y.txt']);
  await fireEvent.click(screen.getByRole('button', { name: 'Remove x.txt' }));

  // What is dropped goes to the message.
  await app.documents.drop({ folder: null, files: [text('new.txt'), text('b.png')], isCut: false });
  await drawn();
  expect(app.documents.edited.map(({ name }) => name)).toEqual(['y.txt', 'new.txt']);
  expect(composed()).toBeNull();
  expect(screen.getByRole('alert').textContent).toContain('“b.png” isn’t text');
  expect(platform.askedTypes()).toContain('stop_reading_documents');
  // A message that is sent meanwhile goes without it.
  app.chat.draft = 'Beside';
  await app.chat.send();
  expect(platform.asked.at(-1)).toMatchObject({ type: 'send_message_with', document_ids: [] });

  await fireEvent.click(screen.getByRole('button', { name: 'Cancel' }));
  await drawn();
  expect(platform.asked.at(-1)).toMatchObject({ type: 'remove_document', document_id: 'd0' });
  expect([chips().length, composed()]).toEqual([2, null]);
  // To an edit that has ended nothing can come back.
  expect([app.toasts.items, app.undo.undo()]).toEqual([[], false]);

  await edit();
  await app.documents.drop({ folder: null, files: [text('new.txt')], isCut: false });
  await drawn();
  await fireEvent.click(screen.getByRole('button', { name: 'Remove y.txt' }));
  expect(app.toasts.items.map((toast) => toast.text)).toEqual(['Removed “y.txt”.']);
  await fireEvent.keyDown(screen.getByRole('textbox', { name: 'Your message' }), { key: 'Enter' });
  await drawn();
  expect(app.toasts.items).toEqual([]);
  expect(platform.asked.findLast(({ type }) => type === 'edit_message')).toEqual({
    type: 'edit_message',
    conversation_id: 'a',
    message_id: 'u',
    text: 'Why?',
    document_ids: ['x', 'd1'],
  });
});

test('a reply that events have overtaken changes nothing', async () => {
  const { app, platform } = await open();
  const documents = [textDocument('d0', { name: 'a.txt', tokens: 5 })];
  const read: DocumentReading = { type: 'read', tokens: 5, document_tokens: 4, model: 'owner/model' };
  platform.answers.get_documents = {
    type: 'documents',
    attached: { of: ofConversation('a'), beginning: [], documents, reading: read },
  };
  const waiting = platform.answers.attach_documents;
  platform.answers.attach_documents = async (command) => {
    const old = typeof waiting === 'function' ? await waiting(command) : { type: 'done' as const };
    emitReading(platform, read);
    return old;
  };
  platform.chosenDocuments = [text('a.txt')];
  await fireEvent.click(screen.getByRole('button', { name: 'Attach files' }));
  await expect.poll(() => app.documents.draft.documents[0]?.tokens).toBe(5);
  expect(app.documents.draft.reading).toEqual(read);
});

test('in a chat that does not exist yet it is made for the document', async () => {
  const { app, platform } = await open();
  app.newChat();
  await app.documents.attach([text('b.png')]);
  expect(platform.askedTypes()).not.toContain('new_conversation');
  await app.documents.attach([text('a.txt'), text('c.png')]);
  expect(app.documents.problemsOf('a')).toEqual([expect.stringContaining('“c.png” isn’t text')]);
  const types = platform.askedTypes();
  expect(types.indexOf('new_conversation')).toBeLessThan(types.indexOf('attach_documents'));
  expect(app.chat.selectedId).toBe('a');
});

test('what could not be attached is said until the message is sent', async () => {
  const { app, platform } = await open();
  await app.documents.attach([text('b.png')]);
  const box = screen.getByRole('textbox', { name: 'Message' });
  const isSaid = () => screen.queryByText(/^“b\.png” isn’t text/) !== null;
  await fireEvent.input(box, { target: { value: 'Hello?' } });
  expect(isSaid()).toBe(true);

  platform.answers.send_message = new Error('No.');
  await fireEvent.keyDown(box, { key: 'Enter' });
  await expect.poll(() => app.toasts.items.length).toBe(1);
  expect([app.chat.draft, isSaid()]).toEqual(['Hello?', true]);

  platform.answers.send_message = { type: 'sent', conversation: conversation('a'), messages: [] };
  await fireEvent.keyDown(box, { key: 'Enter' });
  await expect.poll(isSaid).toBe(false);
});

test('reading shows how far it is, and can be stopped; read, it can become a starting point', async () => {
  const { app, platform } = await open({ type: 'waiting' }, [textDocument('report')]);
  const reading = { processed_tokens: 536, total_tokens: 1048, cached_tokens: 280 };
  emitReading(platform, { type: 'reading', ...reading, document_tokens: 1024 });
  await drawn();
  const bar = screen.getByRole('progressbar', { name: 'Reading the documents' });
  expect([bar.getAttribute('aria-valuenow'), bar.textContent]).toEqual(['51', expect.stringContaining('512 of 1,024')]);
  expect(bar.textContent).toContain('256 already saved');
  await fireEvent.click(screen.getByRole('button', { name: 'Stop reading' }));
  expect(platform.asked).toContainEqual({ type: 'stop_reading_documents', of: ofConversation('a') });
  emitReading(platform, { type: 'unread' });
  await drawn();
  await fireEvent.click(screen.getByRole('button', { name: 'Read now' }));
  expect(platform.asked).toContainEqual({ type: 'read_documents', of: ofConversation('a') });
  const model = app.status.model ?? 'owner/model';
  emitReading(platform, { type: 'read', tokens: 1048, document_tokens: 1024, model });
  await drawn();
  const read = screen.getByText('Read (1,024 tokens). Your question continues from here.');
  // As in the chat's row.
  expect(read.closest('.progress')?.querySelector('svg')?.getAttribute('data-state')).toBe('saved');
  await fireEvent.click(screen.getByRole('button', { name: 'Save as starting point…' }));
  await drawn();
  expect((screen.getByRole('textbox', { name: 'Name' }) as HTMLInputElement).value).toBe('report.txt');
});

test.each<[reading: DocumentReading, sentence: RegExp]>([
  [{ type: 'too_long', exceeds_by: 1200, model: 'owner/model' }, /^Exceeds the context of model by 1,200 tokens\./],
  [
    { type: 'too_long', exceeds_by: 1200, model: 'owner/small' },
    /^Not read yet\. It will be read with your question\.$/,
  ],
  [{ type: 'failed', why: 'The disk is full.' }, /^Not read\. The disk is full\.$/],
  [{ type: 'with_question' }, /^It will be read with your question\.$/],
])('what comes of reading is said: %j', async (reading, sentence) => {
  await open(reading, [textDocument('report')]);
  expect(screen.getByText(sentence)).toBeTruthy();
});

test('time left is rounded, and never grows', () => {
  let now = 0;
  const chat = { selectedId: 'a', queue: { heldBy: () => new Set() } };
  const store = new DocumentStore({ chat, now: () => now } as unknown as ConstructorParameters<
    typeof DocumentStore
  >[0]);
  const documents = [textDocument('d')];
  const at = (milliseconds: number, processed_tokens: number) => {
    now = milliseconds;
    const counts = { processed_tokens, total_tokens: 10_000, cached_tokens: 0, document_tokens: 10_000 };
    const reading = { type: 'reading' as const, ...counts };
    store.receive({
      type: 'documents',
      attached: { of: ofConversation('a'), beginning: [], documents, reading },
    });
    return store.secondsLeft('a');
  };
  expect(at(0, 0)).toBeNull();
  expect(at(1000, 100)).toBeNull();
  expect(at(2000, 1000)).toBe(20);
  expect(at(4000, 1100)).toBe(20);
  expect(at(8000, 8000)).toBe(5);
});

test('a removed document comes back', async () => {
  const { app, platform } = await open({ type: 'unread' }, [textDocument('a'), textDocument('b')]);
  await fireEvent.click(screen.getByRole('button', { name: 'Remove a.txt' }));
  await expect.poll(() => app.toasts.items.map((toast) => toast.text)).toEqual(['Removed “a.txt”.']);
  expect(screen.queryByRole('button', { name: 'Remove a.txt' })).toBeNull();
  app.toasts.act(app.toasts.items[0]?.id ?? 0);
  await expect.poll(() => screen.queryByRole('button', { name: 'Remove a.txt' })).not.toBeNull();
  expect(platform.asked).toContainEqual({ type: 'restore_document', of: ofConversation('a'), document_id: 'a' });
});

test('the reader shows a document of a message, and finds words in it', async () => {
  const { app, platform } = await open();
  const documents = [textDocument('report', { kind: 'pdf' })];
  const conversationRow = conversation('a');
  platform.answers.get_conversation = {
    type: 'conversation',
    conversation: conversationRow,
    messages: [message('m', { role: 'user', text: 'Why?', documents })],
  };
  await app.chat.thread?.refetch();
  await drawn();
  await fireEvent.click(screen.getByRole('button', { name: 'report.txt, 1,024 tokens: open' }));
  await drawn();
  const dialog = screen.getByRole('dialog', { name: 'report.txt' });
  expect(within(dialog).getByText('Text of a PDF · 4 kB · 1,024 tokens')).toBeTruthy();
  expect(within(dialog).getByRole('region').textContent).toBe('One stone.\nTwo stones.\nThree Stones.');
  const field = within(dialog).getByRole('searchbox');
  await fireEvent.input(field, { target: { value: 'stones' } });
  expect(within(dialog).getByText('1 of 2')).toBeTruthy();
  await fireEvent.click(within(dialog).getByRole('button', { name: 'Next match' }));
  expect(within(dialog).getByText('2 of 2')).toBeTruthy();
  await fireEvent.input(field, { target: { value: 'sand' } });
  expect(within(dialog).getByText('Not found')).toBeTruthy();
});

test('a long text that is pasted is offered as a document', async () => {
  const { app, platform } = await open();
  const long = 'A cairn is a heap of stones. '.repeat(200);
  const data = { files: [], getData: () => long } as unknown as DataTransfer;
  expect(app.documents.paste(data)).toBe(false);
  app.chat.draft = `Look: ${long}`;
  await drawn();
  await fireEvent.click(screen.getByRole('button', { name: 'Attach it instead' }));
  await expect.poll(() => platform.askedTypes()).toContain('attach_documents');
  expect(app.chat.draft).toBe('Look:');
  const short = { files: [], getData: () => 'short' } as unknown as DataTransfer;
  app.documents.paste(short);
  expect(app.documents.pastedHere).toBeNull();
});

test('of a folder a person chooses, and sees why the rest is left out', async () => {
  const { app, platform } = await open();
  const files = [text('src/a.rs'), text('b.md'), text('.env'), text('logo.png')];
  await app.documents.drop({ folder: 'project', files, isCut: false });
  await drawn();
  const dialog = screen.getByRole('dialog', { name: 'Attach files of “project”' });
  expect(within(dialog).getByText('Left out (2)')).toBeTruthy();
  expect(within(dialog).getByText('hidden')).toBeTruthy();
  expect(within(dialog).getByText('no text')).toBeTruthy();
  const boxes = within(dialog).getAllByRole<HTMLInputElement>('checkbox');
  expect(boxes.map(({ checked }) => checked)).toEqual([true, true, true]);
  await fireEvent.click(within(dialog).getByRole('checkbox', { name: /b\.md/ }));
  await fireEvent.click(within(dialog).getByRole('button', { name: 'Attach 1 file' }));
  await expect.poll(() => platform.askedTypes()).toContain('attach_documents');
  const [attached] = platform.asked.filter((command) => command.type === 'attach_documents');
  expect(attached?.documents.map(({ name }) => name)).toEqual(['src/a.rs']);
});

const FOLDER = { id: 'f', name: 'Contracts', system_prompt: '', model: null };

test.each(['Create', 'Cancel'])('a new folder takes files before it is created, and then: %s', async (end) => {
  const { app, platform } = await open();
  const of = ofFolder('n');
  const held: Document[] = [];
  const made = { id: 'n', name: 'New folder', system_prompt: '', model: null };
  platform.answers.create_folder = { type: 'folder', folder: made };
  const answer = () => ({
    type: 'documents' as const,
    attached: { of, beginning: [], documents: held, reading: { type: 'waiting' as const } },
  });
  platform.answers.get_documents = answer;
  platform.answers.attach_documents = (command: Command) => {
    if (command.type === 'attach_documents')
      held.push(...command.documents.map(({ name }) => textDocument(name, { name })));
    return answer();
  };
  const asked = () => platform.asked.filter(({ type }) => /folder$|^attach/.test(type)).map(({ type }) => type);
  let given: string | null = null;
  app.folders.edit({}, (folder) => (given = folder.name));
  await drawn();
  const dialog = screen.getByRole('dialog', { name: 'New folder', hidden: true });
  const inDialog = within(dialog);
  await fireEvent.input(inDialog.getByLabelText('Name'), { target: { value: 'Contracts' } });
  const add = inDialog.getByRole('button', { name: 'Add files…', hidden: true });
  // Whoever chooses none makes no folder.
  await fireEvent.click(add);
  await drawn();
  expect(asked()).toEqual([]);
  platform.chosenDocuments = [text('rules.md')];
  await fireEvent.click(add);
  await expect.poll(() => inDialog.queryAllByRole('button', { name: /: open$/, hidden: true }).length).toBe(1);
  // What is dropped goes there too, and what was typed stays.
  await app.dropFiles([new File(['A wall.'], 'wall.txt')], null);
  await expect.poll(() => inDialog.queryAllByRole('button', { name: /: open$/, hidden: true }).length).toBe(2);
  expect(asked()).toEqual(['create_folder', 'attach_documents', 'attach_documents']);
  expect(inDialog.getByLabelText<HTMLInputElement>('Name').value).toBe('Contracts');
  await fireEvent.click(inDialog.getByRole('button', { name: end, hidden: true }));
  await drawn();
  expect(app.folders.editing).toBeNull();
  if (end === 'Create') {
    expect(platform.asked).toContainEqual({
      type: 'change_folder',
      id: 'n',
      name: 'Contracts',
      system_prompt: '',
      model: null,
    });
    expect(asked()).not.toContain('delete_folder');
    expect(given).toBe('Contracts');
  } else {
    expect(platform.asked).toContainEqual({ type: 'delete_folder', id: 'n' });
    expect([given, app.folders.items]).toEqual([null, []]);
  }
});

test('a folder whose dialog is closed while it is made for files is not kept', async () => {
  const { app, platform } = await open();
  const reply = gate<Reply>();
  platform.answers.create_folder = reply.promise;
  platform.chosenDocuments = [text('rules.md')];
  app.folders.edit({});
  const made = app.folders.make();
  await app.folders.cancel();
  reply.open({ type: 'folder', folder: { id: 'n', name: 'New folder', system_prompt: '', model: null } });
  expect(await made).toBeNull();
  expect(platform.asked).toContainEqual({ type: 'delete_folder', id: 'n' });
  expect([app.folders.items, app.folders.editedId]).toEqual([[], null]);
});

test.each(['files', 'the name'])(
  'one folder is made where %s comes first and the other before it is there',
  async (first) => {
    const { app, platform } = await open();
    const reply = gate<Reply>();
    platform.answers.create_folder = reply.promise;
    app.folders.edit({});
    const steps = [() => app.folders.make(), () => app.folders.save('Contracts', '', null)];
    if (first !== 'files') steps.reverse();
    const done = steps.map((step) => step());
    reply.open({ type: 'folder', folder: { id: 'n', name: 'New folder', system_prompt: '', model: null } });
    expect(await Promise.all(done)).toContain('n');
    const asked = platform.asked.filter(({ type }) => /_folder$/.test(type));
    const change = { type: 'change_folder', id: 'n', name: 'Contracts', system_prompt: '', model: null };
    // The one that files have made is called otherwise until then.
    expect(asked.slice(1)).toEqual(first === 'files' ? [change] : []);
    expect(asked[0]?.type).toBe('create_folder');
    expect([app.folders.editing, app.folders.items.length]).toEqual([null, 1]);
  },
);

test('a folder whose dialog is cancelled while it is made is deleted, and no chat goes into it', async () => {
  const { app, platform } = await open();
  const reply = gate<Reply>();
  platform.answers.create_folder = reply.promise;
  const made: string[] = [];
  app.folders.edit({}, ({ id }) => made.push(id));
  const saving = app.folders.save('Contracts', 'Be brief.', null);
  await app.folders.cancel();
  app.folders.edit(FOLDER);
  reply.open({ type: 'folder', folder: { id: 'n', name: 'Contracts', system_prompt: '', model: null } });
  await saving;
  const asked = platform.asked.filter(({ type }) => /_folder$/.test(type)).slice(1);
  expect(asked).toEqual([{ type: 'delete_folder', id: 'n' }]);
  expect([made, app.folders.items, app.folders.editing]).toEqual([[], [], FOLDER]);
});

test('a folder that could not be made is asked for again', async () => {
  const { app, platform } = await open();
  platform.answers.create_folder = new Error('The disk is full.');
  app.folders.edit({});
  expect(await app.folders.make()).toBeNull();
  platform.answers.create_folder = { type: 'folder', folder: FOLDER };
  await app.folders.save('Contracts', '', null);
  expect([app.folders.problem, app.folders.editing]).toEqual(['The disk is full.', null]);
});

test('the dialog of a folder shows its files; new chats begin with them, and say so', async () => {
  const { app, platform } = await open();
  const of = ofFolder('f');
  let held = [textDocument('lease')];
  const read: DocumentReading = { type: 'read', tokens: 1054, document_tokens: 1030, model: 'owner/model' };
  const answer = (reading: DocumentReading = read) => ({
    type: 'documents' as const,
    attached: { of, beginning: [], documents: held, reading },
  });
  const ofChat = platform.answers.get_documents;
  platform.answers.get_documents = (command: Command) =>
    command.type === 'get_documents' && command.of.type === 'folder' ? answer() : (ofChat as () => Reply)();
  platform.answers.attach_documents = (command: Command) => {
    if (command.type === 'attach_documents')
      held = [...held, ...command.documents.map(({ name }) => textDocument(name, { name }))];
    return answer({ type: 'waiting' });
  };
  platform.answers.remove_document = () => {
    held = held.slice(1);
    return answer();
  };
  platform.emit({ type: 'folders', folders: [FOLDER] });
  app.folders.edit(FOLDER);
  await drawn();
  const files = await screen.findByRole('region', { name: 'Files' });
  expect(within(files).getByText('Read (1,030 tokens). New chats continue from here.')).toBeTruthy();
  expect(within(files).queryByRole('button', { name: 'Save as starting point…' })).toBeNull();
  platform.chosenDocuments = [text('rules.md'), text('logo.png')];
  await fireEvent.click(screen.getByRole('button', { name: 'Add files…' }));
  await expect.poll(() => within(files).queryAllByRole('button', { name: /: open$/ }).length).toBe(2);
  expect(platform.asked.find((command) => command.type === 'attach_documents')).toMatchObject({ of });
  expect(within(files).getByRole('alert').textContent).toContain('“logo.png” isn’t text');
  platform.emit({
    type: 'documents_reading',
    of,
    reading: { type: 'too_long', exceeds_by: 512, model: 'owner/model' },
  });
  await drawn();
  expect(files.textContent).toContain('Exceeds the context of model by 512 tokens.');
  // A file that is dropped meanwhile goes to the folder, not to the chat behind the dialog.
  await app.dropFiles([new File(['A wall.'], 'wall.txt')], null);
  await expect.poll(() => within(files).queryAllByRole('button', { name: /: open$/ }).length).toBe(3);
  await fireEvent.click(within(files).getByRole('button', { name: 'Remove lease.txt' }));
  await expect.poll(() => app.toasts.items.map((toast) => toast.text)).toContain('Removed “lease.txt”.');
  expect(platform.asked).toContainEqual({ type: 'remove_document', of, document_id: 'lease' });
  app.folders.editing = null;

  app.newChatIn('f');
  await drawn();
  const beginning = await screen.findByRole('region', { name: 'Files of the folder' });
  expect(beginning.textContent).toContain('Begins with the files of “Contracts”');
  expect(within(beginning).getAllByRole('button')).toHaveLength(2);
  await fireEvent.click(within(beginning).getByRole('button', { name: /^rules\.md/ }));
  expect(platform.asked).toContainEqual({ type: 'get_document', of, document_id: 'rules.md' });
});

test('a message that waits holds the documents that it was written with', async () => {
  const { app, platform } = await open({ type: 'unread' }, [textDocument('a')]);
  const { chat, documents } = app;
  const row = conversation('a', { is_streaming: true });
  const [question, answer] = [message('q', { role: 'user' }), message('m', { parent_id: 'q', status: 'streaming' })];
  platform.answers.send_message = { type: 'sent', conversation: row, messages: [question, answer] };
  platform.answers.send_message_with = { type: 'sent', conversation: row, messages: [] };
  platform.emit({ type: 'message', message: question });
  platform.emit({ type: 'message', message: answer });
  await expect.poll(() => chat.thread?.isStreaming).toBe(true);
  chat.draft = 'About a';
  await chat.send();
  expect(documents.draft.documents).toEqual([]);
  platform.chosenDocuments = [text('b.txt')];
  await documents.choose();
  expect(documents.draft.documents.map(({ name }) => name)).toEqual(['b.txt']);
  await drawn();
  const waiting = screen.getByRole('region', { name: /wait/i });
  expect(within(waiting).getByRole('button', { name: /^a\.txt/ })).toBeTruthy();
  platform.emit({ type: 'message', message: message('m', { parent_id: 'q', text: 'Yes.' }) });
  const sent = () => platform.asked.filter(({ type }) => type.startsWith('send_message'));
  await expect
    .poll(sent)
    .toEqual([{ type: 'send_message_with', conversation_id: 'a', text: 'About a', document_ids: ['a'] }]);
});

test('a chat that has only documents is the new chat, stands in no list, and goes when they are taken away', async () => {
  const { app, platform } = await open();
  const row = conversation('n', { title: '' });
  platform.answers.new_conversation = { type: 'conversation', conversation: row, messages: [] };
  const answered = (documents: Document[]) => ({
    type: 'documents' as const,
    attached: { of: ofConversation('n'), beginning: [], documents, reading: { type: 'waiting' as const } },
  });
  platform.answers.attach_documents = answered([textDocument('x', { name: 'x.txt' })]);
  platform.answers.remove_document = answered([]);
  platform.answers.restore_document = answered([textDocument('x', { name: 'x.txt' })]);
  app.newChat();
  platform.chosenDocuments = [text('x.txt')];
  await app.documents.choose();
  await drawn();
  const listed = () =>
    [...document.querySelectorAll<HTMLElement>('[data-conversation]')].map((one) => one.dataset.conversation);
  const chip = () => screen.queryByRole('button', { name: /x\.txt.*: open$/ });
  expect([app.chat.selectedId, listed()]).toEqual(['n', ['a']]);
  expect(screen.getByRole('heading', { name: /x\.txt/ })).toBeTruthy();

  // It is found again as the new chat, also once more, and by nothing else.
  app.openConversation('a');
  await drawn();
  expect(chip()).toBeNull();
  app.newChat();
  app.newChat();
  await drawn();
  expect(app.chat.selectedId).toBe('n');
  expect(chip()).toBeTruthy();
  app.newChatAs({ id: 'p', name: 'Poet', system_prompt: '', model: null, values: {} });
  expect(app.chat.selectedId).toBeNull();
  app.newChat();

  await fireEvent.click(screen.getByRole('button', { name: 'Remove x.txt' }));
  await drawn();
  expect(platform.askedTypes()).not.toContain('delete_conversations');
  app.openConversation('a');
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'delete_conversations', ids: ['n'] });
  expect(app.chat.list.get('n')).toBeUndefined();

  // Whoever takes that back has the chat again.
  app.undo.undo();
  await drawn();
  const back = platform.askedTypes().filter((type) => type.startsWith('restore_'));
  expect(back).toEqual(['restore_conversations', 'restore_document']);
  expect(app.chat.selectedId).toBe('n');
  expect(chip()).toBeTruthy();
});

test('what is written in a chat without documents keeps it', async () => {
  const { app, platform } = await open();
  app.chat.list.put(conversation('n', { title: '' }));
  platform.answers.get_documents = {
    type: 'documents',
    attached: { of: ofConversation('n'), beginning: [], documents: [], reading: { type: 'waiting' } },
  };
  app.newChat();
  await drawn();
  app.chat.draft = 'Half a thought';
  app.openConversation('a');
  app.newChat();
  expect([app.chat.selectedId, app.chat.draft]).toEqual(['n', 'Half a thought']);
  app.chat.draft = '';
  app.openConversation('a');
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'delete_conversations', ids: ['n'] });
});

test('a chat is not left while its documents or its first message are on their way', async () => {
  const { app, platform } = await open();
  // Of a folder that is gone: a new chat finds it all the same.
  app.chat.list.put(conversation('n', { title: '', folder_id: 'gone' }));
  platform.answers.get_documents = {
    type: 'documents',
    attached: { of: ofConversation('n'), beginning: [], documents: [], reading: { type: 'waiting' } },
  };
  app.newChat();
  expect(app.chat.selectedId).toBe('n');
  await drawn();
  let refuse: (why: Error) => void = () => undefined;
  const refused = () => new Promise<Reply>((_, reject) => (refuse = reject));
  platform.answers.attach_documents = refused;
  platform.chosenDocuments = [text('x.txt')];
  const attaching = app.documents.choose();
  await vi.waitFor(() => expect(platform.askedTypes()).toContain('attach_documents'));
  app.openConversation('a');
  expect(platform.askedTypes()).not.toContain('delete_conversations');
  refuse(new Error('There is no text in it.'));
  await attaching;

  app.newChat();
  platform.answers.send_message = refused;
  app.chat.draft = 'A question';
  const sending = app.chat.send();
  await vi.waitFor(() => expect(platform.askedTypes()).toContain('send_message'));
  app.openConversation('a');
  expect(platform.askedTypes()).not.toContain('delete_conversations');
  refuse(new Error('No.'));
  await sending;

  app.newChat();
  app.chat.draft = '';
  app.openConversation('a');
  expect(platform.askedTypes()).toContain('delete_conversations');
});
