// What becomes of the bytes of files: texts in several encodings, web pages, folders, and what is refused.
import { afterEach, expect, test, vi } from 'vitest';
import { decode } from './decode';
import { whyLeftOut } from './folder';
import { htmlText } from './html';
import { isBinaryName, kindOf } from './kinds';
import { pageText } from './pdf';
import { MAX_TEXT_BYTES, readDocument } from './read';
import type { SourceFile } from './sources';

const pdf = vi.hoisted(() => ({ pdfText: vi.fn() }));
vi.mock('./pdf', async (original) => ({ ...(await original<object>()), pdfText: pdf.pdfText }));
afterEach(() => pdf.pdfText.mockReset());

const utf8 = (text: string) => new TextEncoder().encode(text);
const utf16 = (text: string, isBig: boolean) =>
  new Uint8Array([...text].flatMap((char) => (isBig ? [0, char.charCodeAt(0)] : [char.charCodeAt(0), 0])));
const file = (name: string, bytes: Uint8Array, size = bytes.length): SourceFile => ({
  name,
  bytes: size,
  read: async () => bytes,
});

test.each<[what: string, bytes: Uint8Array, text: string | null]>([
  ['UTF-8', utf8('Größe → 🪨'), 'Größe → 🪨'],
  ['UTF-8 with a mark', new Uint8Array([0xef, 0xbb, 0xbf, ...utf8('a')]), 'a'],
  ['UTF-16 with a mark', new Uint8Array([0xff, 0xfe, ...utf16('Stein', false)]), 'Stein'],
  ['UTF-16 big with a mark', new Uint8Array([0xfe, 0xff, ...utf16('Stein', true)]), 'Stein'],
  ['UTF-16 without a mark', utf16('Ein Stein auf dem anderen', false), 'Ein Stein auf dem anderen'],
  ['UTF-16 big without a mark', utf16('Ein Stein auf dem anderen', true), 'Ein Stein auf dem anderen'],
  ['Latin-1', new Uint8Array([0x47, 0x72, 0xf6, 0xdf, 0x65]), 'Größe'],
  ['a picture', new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0, 0, 0, 13, 1, 2, 3]), null],
  ['noise', new Uint8Array(Array.from({ length: 400 }, (_, index) => (index % 31) + 1)), null],
])('%s', (_, bytes, text) => expect(decode(bytes)).toBe(text));

test.each([
  ['notes.md', 'markdown'],
  ['a/b/Main.RS', 'code'],
  ['Makefile', 'code'],
  ['stones.tsv', 'csv'],
  ['page.HTM', 'html'],
  ['paper.pdf', 'pdf'],
  ['letter', 'text'],
  ['letter.txt', 'text'],
])('%s is %s', (name, kind) => expect(kindOf(name)).toBe(kind));

test('only an ending makes a name one of a file without text', () => {
  expect(['a.png', 'b.DOCX', 'c.tar.gz'].every(isBinaryName)).toBe(true);
  expect(['png', 'readme', 'a.txt', 'notes.md'].some(isBinaryName)).toBe(false);
});

test('a web page is read as a person would copy it', () => {
  const page = `<html><head><title>Stones</title><style>p{}</style><script>ran()</script></head><body>
    <h2>How to <em>build</em></h2><p>One   stone<br>on another.</p>
    <ul><li>flat</li><li>round</li></ul>
    <table><tr><th>Kind</th><th>Weight</th></tr><tr><td>granite</td><td>2 kg</td></tr></table>
    <pre>  a
    b</pre><div hidden>secret</div><noscript>off</noscript><template>no</template></body></html>`;
  expect(htmlText(page)).toBe(
    'Stones\n\n## How to build\n\nOne stone\non another.\n\n- flat\n- round\n\nKind | Weight\ngranite | 2 kg\n\n  a\n    b',
  );
  expect(htmlText('<script>only()</script>')).toBe('');
});

test('the lines of a page of a PDF', () => {
  const item = (str: string, y: number, hasEOL = true) => ({ str, hasEOL, height: 10, transform: [1, 0, 0, 1, 0, y] });
  const items = [item('A cairn', 700, false), item(' is built', 700), item('of stones.', 688), item('Next part', 650)];
  expect(pageText(items as Parameters<typeof pageText>[0])).toBe('A cairn is built\nof stones.\n\nNext part');
});

test('line breaks are plain, and a page says in which encoding it is', async () => {
  expect(await readDocument(file('a.txt', utf8('one\r\ntwo\rthree')))).toEqual({
    name: 'a.txt',
    kind: 'text',
    text: 'one\ntwo\nthree',
  });
  const page = new Uint8Array([...utf8('<meta charset="iso-8859-2"><p>'), 0xb1]);
  expect((await readDocument(file('a.html', page))).text).toBe('ą');
});

const start = utf8('%PDF-1.7 …');

test.each<[what: string, file: SourceFile, sentence: RegExp]>([
  ['an empty file', file('a.txt', new Uint8Array()), /“a\.txt” is empty/],
  ['blanks', file('a.txt', utf8(' \n')), /“a\.txt” is empty/],
  ['a name of a picture', file('a.png', utf8('text')), /“a\.png” isn’t text/],
  ['a name of a program for texts', file('Letter.DOCX', utf8('PK')), /“Letter\.DOCX” .* Save it as PDF or plain text/],
  ['a name of a program for tables', file('a.xlsx', utf8('PK')), /Save it as PDF or plain text/],
  ['a name of a book', file('a.epub', utf8('PK')), /Save it as PDF or plain text/],
  ['bytes that are no text', file('a.txt', new Uint8Array([1, 0, 2, 0, 0, 3, 1, 1])), /isn’t text/],
  ['a large file', file('a.txt', utf8('x'), MAX_TEXT_BYTES + 1), /too large \(17 MB; at most 17 MB\)/],
  [
    'a file that is gone',
    { name: 'a.txt', bytes: 1, read: () => Promise.reject(new Error('gone')) },
    /could not be read/,
  ],
  ['a PDF that is none', file('a.pdf', utf8('hello')), /can’t be read as a PDF/],
])('%s is refused with a sentence', async (_, given, sentence) => {
  await expect(readDocument(given)).rejects.toThrow(sentence);
});

test('PDFs are told by their beginning; scanned, encrypted and damaged ones are refused', async () => {
  const { PdfProblem } = await import('./pdf');
  // As the worker does, it takes the bytes away.
  pdf.pdfText.mockImplementationOnce(async (bytes: Uint8Array<ArrayBuffer>) => {
    structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
    return 'A page';
  });
  expect(await readDocument(file('report', start.slice()))).toEqual({ name: 'report', kind: 'pdf', text: 'A page' });
  pdf.pdfText.mockResolvedValueOnce('');
  await expect(readDocument(file('a.pdf', start))).rejects.toThrow(/pictures of pages but no text/);
  pdf.pdfText.mockRejectedValueOnce(new PdfProblem('encrypted'));
  await expect(readDocument(file('a.pdf', start))).rejects.toThrow(/protected by a password/);
  pdf.pdfText.mockRejectedValueOnce(new PdfProblem('damaged'));
  await expect(readDocument(file('a.pdf', start))).rejects.toThrow(/is damaged/);
});

test.each([
  ['src/main.rs', 10, null],
  ['.env', 10, 'hidden'],
  ['.github/ci.yml', 10, 'hidden'],
  ['node_modules/a/index.js', 10, 'program'],
  ['package-lock.json', 10, 'program'],
  ['logo.png', 10, 'binary'],
  ['empty.txt', 0, 'empty'],
  ['huge.csv', MAX_TEXT_BYTES + 1, 'tooLarge'],
  ['huge.pdf', MAX_TEXT_BYTES + 1, null],
])('of a folder, %s with %d bytes is left out as %s', (name, bytes, why) => {
  expect(whyLeftOut({ name, bytes, read: async () => new Uint8Array() })).toBe(why);
});
