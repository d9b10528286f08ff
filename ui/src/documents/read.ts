// Makes documents of files. What cannot become one is said in a sentence.
import type { DocumentKind, NewDocument } from '../platform/wire';
import { strings, type Catalogue } from '../text';
import { decode, declaredEncoding } from './decode';
import { htmlText } from './html';
import { isBinaryName, isOfficeName, kindOf } from './kinds';
import type { PdfOptions } from './pdf';
import type { SourceFile } from './sources';

/** The largest text that the core takes. */
export const MAX_TEXT_BYTES = 16 * 2 ** 20;
/** A PDF has pictures as well. */
export const MAX_PDF_BYTES = 128 * 2 ** 20;

/** Why a file cannot be attached. */
export type ProblemKind = keyof Catalogue['documents']['problemsOfSeveral'];

/** A file that cannot be attached; `message` is a sentence to show. */
export class DocumentProblem extends Error {
  /** `most`: how many bytes it may have, where it has more. */
  constructor(
    readonly kind: ProblemKind,
    readonly file: string,
    sentence: string,
    readonly most = 0,
  ) {
    super(sentence);
  }
}

/** What to say of files that cannot be attached: one sentence of all that have the same problem. */
export function problemSentences(problems: readonly DocumentProblem[]): string[] {
  const groups = new Map<string, [DocumentProblem, ...DocumentProblem[]]>();
  for (const problem of problems) {
    const key = `${problem.kind} ${problem.most}`;
    const group = groups.get(key);
    if (group) group.push(problem);
    else groups.set(key, [problem]);
  }
  return [...groups.values()].map((group) => {
    const [{ kind, message, most }] = group;
    if (group.length === 1) return message;
    return strings.documents.problemsOfSeveral[kind](
      group.map(({ file }) => file),
      most,
    );
  });
}

/** A problem that says nothing but which file has it. */
export function problemOf(kind: Exclude<ProblemKind, 'tooLarge'>, file: string): DocumentProblem {
  return new DocumentProblem(kind, file, strings.documents.problems[kind](file));
}

function tooLarge(file: string, bytes: number, most: number): DocumentProblem {
  return new DocumentProblem('tooLarge', file, strings.documents.problems.tooLarge(file, bytes, most), most);
}

/** The document in a file. Rejects with a {@link DocumentProblem}, or with the reason of the signal. */
export async function readDocument(file: SourceFile, options: PdfOptions = {}): Promise<NewDocument> {
  const { name } = file;
  const kind = kindOf(name);
  const most = kind === 'pdf' ? MAX_PDF_BYTES : MAX_TEXT_BYTES;
  if (file.bytes === 0) throw problemOf('empty', name);
  if (isOfficeName(name)) throw problemOf('office', name);
  if (isBinaryName(name)) throw problemOf('binary', name);
  if (file.bytes > most) throw tooLarge(name, file.bytes, most);
  const bytes = await file.read().catch(() => {
    throw problemOf('unreadable', name);
  });
  options.signal?.throwIfAborted();
  // Before they are handed to the worker, which leaves nothing of them here.
  const kindFound = isPdf(bytes) ? 'pdf' : kind;
  const text = await textOf(name, kind, bytes, options);
  if (text.trim() === '') throw problemOf(kindFound === 'pdf' ? 'scanned' : 'empty', name);
  const textBytes = new Blob([text]).size;
  if (textBytes > MAX_TEXT_BYTES) throw tooLarge(name, textBytes, MAX_TEXT_BYTES);
  return { name, kind: kindFound, text };
}

async function textOf(name: string, kind: DocumentKind, bytes: Uint8Array, options: PdfOptions): Promise<string> {
  if (isPdf(bytes)) return pdf(name, bytes, options);
  if (kind === 'pdf') throw problemOf('damagedPdf', name);
  const text = decode(bytes, kind === 'html' ? declaredEncoding(bytes) : undefined);
  if (text === null) throw problemOf('binary', name);
  // The model's tokens are those of plain line breaks.
  const plain = text.replaceAll(/\r\n?/g, '\n');
  return kind === 'html' ? htmlText(plain) : plain;
}

function isPdf(bytes: Uint8Array): boolean {
  // Some have a few bytes before.
  return new TextDecoder('windows-1252').decode(bytes.subarray(0, 1024)).includes('%PDF-');
}

async function pdf(name: string, bytes: Uint8Array, options: PdfOptions): Promise<string> {
  const { PdfProblem, pdfText } = await import('./pdf');
  try {
    return await pdfText(bytes, options);
  } catch (error) {
    options.signal?.throwIfAborted();
    const isEncrypted = error instanceof PdfProblem && error.kind === 'encrypted';
    if (!(error instanceof PdfProblem)) console.error('a PDF cannot be read', error);
    throw problemOf(isEncrypted ? 'encrypted' : 'damagedPdf', name);
  }
}
