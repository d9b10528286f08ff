// Documents: attached files, how far they are read, and the reader.
import type { DocumentKind } from '../../platform/wire';
import { f, tokens } from './formats';

const kinds: Record<DocumentKind, string> = {
  text: 'Text',
  code: 'Code',
  markdown: 'Markdown',
  csv: 'Table',
  html: 'Text of a web page',
  pdf: 'Text of a PDF',
};

const some = (names: string[]) => f.someNames(names, (count) => f.plural(count, 'other', 'others'));

export const documents = {
  again: 'Try again',
  amount: (count: number | null, bytes: number) => (count === null ? f.bytes(bytes) : tokens(count)),
  askAbout: (names: string[]) =>
    names.length === 1 ? `Ask about “${names[0]}”` : `Ask about ${f.count(names.length)} documents`,
  askNote:
    'Cairn reads while you write, once. Every question after that starts where the reading ended, next week too.',
  attach: 'Attach files',
  attachPasted: 'Attach it instead',
  attachTitle: 'Attach text, code, Markdown, CSV, HTML or PDF',
  cut: (count: number) => `Only the first ${f.count(count)} characters are shown here. The model reads all of it.`,
  facts: (kind: DocumentKind, bytes: number, count: number | null) =>
    [kinds[kind], f.bytes(bytes), ...(count === null ? [] : [tokens(count)])].join(' · '),
  failed: (why: string) => `Not read. ${why}`,
  fetching: 'Opening…',
  find: 'Find in the document',
  folder: {
    all: 'All files',
    attach: (count: number) => (count === 0 ? 'Attach' : `Attach ${f.plural(count, 'file', 'files')}`),
    bytes: f.bytes,
    cut: (count: number) => `The folder has more files: only ${f.count(count)} are listed.`,
    leftOut: (count: number) => `Left out (${f.count(count)})`,
    none: 'There is no file in this folder that can be attached.',
    sum: (count: number, bytes: number) => `${f.count(count)} · ${f.bytes(bytes)}`,
    title: (name: string) => `Attach files of “${name}”`,
    why: {
      hidden: 'hidden',
      program: 'made by a program',
      binary: 'no text',
      empty: 'empty',
      tooLarge: 'too large',
    },
  },
  label: 'Documents',
  matches: (at: number, count: number) => (count === 0 ? 'Not found' : `${f.count(at)} of ${f.count(count)}`),
  next: 'Next match',
  notAttached: 'What could not be attached',
  open: (name: string, amount: string) => `${name}, ${amount}: open`,
  openTitle: (name: string) => `Show the text of ${name}`,
  opening: (name: string, page: number | null, pages: number | null, more: number) => {
    const where = page === null || pages === null ? '' : `, page ${f.count(page)} of ${f.count(pages)}`;
    return `Opening ${name}${where}…${more > 0 ? ` (${f.count(more)} more)` : ''}`;
  },
  pasted: (chars: number) => `You pasted ${f.count(chars)} characters.`,
  pastedName: 'Pasted text.txt',
  previous: 'Previous match',
  problems: {
    office: (name: string) =>
      `“${name}” can’t be read as it is. Save it as PDF or plain text, in a program that can, and attach that.`,
    binary: (name: string) => `“${name}” isn’t text. Text, code, Markdown, CSV, HTML and PDF files can be attached.`,
    damagedPdf: (name: string) =>
      `“${name}” can’t be read as a PDF: it is damaged, or something else. Open it elsewhere and save it again.`,
    empty: (name: string) => `“${name}” is empty: there is nothing to read in it.`,
    encrypted: (name: string) => `“${name}” is protected by a password. Save a copy without one, and attach that.`,
    scanned: (name: string) =>
      `“${name}” has pictures of pages but no text. Run text recognition on it, and attach the result.`,
    tooLarge: (name: string, bytes: number, most: number) =>
      `“${name}” is too large (${f.bytes(bytes)}; at most ${f.bytes(most)}). Attach a part of it.`,
    unreadable: (name: string) => `“${name}” could not be read. Check that it is still where it was.`,
  },
  problemsOfSeveral: {
    office: (names: string[]) =>
      `${f.count(names.length)} files can’t be read as they are: ${some(names)}. Save them as PDF or plain text, in a program that can, and attach those.`,
    binary: (names: string[]) =>
      `${f.count(names.length)} files aren’t text: ${some(names)}. Text, code, Markdown, CSV, HTML and PDF files can be attached.`,
    damagedPdf: (names: string[]) =>
      `${f.count(names.length)} files can’t be read as a PDF: ${some(names)}. They are damaged, or something else. Open them elsewhere and save them again.`,
    empty: (names: string[]) =>
      `${f.count(names.length)} files are empty: ${some(names)}. There is nothing to read in them.`,
    encrypted: (names: string[]) =>
      `${f.count(names.length)} files are protected by a password: ${some(names)}. Save copies without one, and attach those.`,
    scanned: (names: string[]) =>
      `${f.count(names.length)} files have pictures of pages but no text: ${some(names)}. Run text recognition on them, and attach the results.`,
    tooLarge: (names: string[], most: number) =>
      `${f.count(names.length)} files are too large (at most ${f.bytes(most)}): ${some(names)}. Attach parts of them.`,
    unreadable: (names: string[]) =>
      `${f.count(names.length)} files could not be read: ${some(names)}. Check that they are still where they were.`,
  },
  progress: (processed: number, total: number) => `Reading ${f.count(processed)} of ${tokens(total)}`,
  read: (count: number) => `Read (${tokens(count)}). Your question continues from here.`,
  readNow: 'Read now',
  reading: 'Reading the documents',
  remove: (name: string) => `Remove ${name}`,
  removed: (name: string) => `Removed “${name}”.`,
  showAll: (count: number) => `Show all ${f.count(count)} documents`,
  stale: (model: string) => `Another model has read it; ${model} will read it with your question.`,
  stop: 'Stop reading',
  textOf: (name: string) => `Text of ${name}`,
  timeLeft: (seconds: number) => `about ${f.timeLeft(seconds)} left`,
  tooLong: (count: number, model: string) =>
    `Exceeds the context of ${model} by ${tokens(count)}. Remove a document, or choose a model with a longer context.`,
  tooLongNow: (count: number, model: string) =>
    `With what stands in this chat, it exceeds the context of ${model} by ${tokens(count)}. Let the oldest messages be forgotten, or remove a document.`,
  tooLongToSend: 'The documents do not fit into the context of the model.',
  unread: 'Not read yet. It will be read with your question.',
  waiting: 'Getting ready to read…',
  withQuestion: 'It will be read with your question.',
};
