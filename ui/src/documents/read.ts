// Makes documents of files. What cannot become one is said in a sentence.
import type { DocumentKind, NewDocument } from '../platform/wire';
import { strings } from '../text';
import { decode, declaredEncoding } from './decode';
import { htmlText } from './html';
import { isBinaryName, isOfficeName, kindOf } from './kinds';
import type { PdfOptions } from './pdf';
import type { SourceFile } from './sources';

/** The largest text that the core takes. */
export const MAX_TEXT_BYTES = 16 * 2 ** 20;
/** A PDF has pictures as well. */
export const MAX_PDF_BYTES = 128 * 2 ** 20;

/** A file that cannot be attached; `message` is a sentence to show. */
export class DocumentProblem extends Error {}

/** The document in a file. Rejects with a {@link DocumentProblem}, or with the reason of the signal. */
export async function readDocument(file: SourceFile, options: PdfOptions = {}): Promise<NewDocument> {
  const words = strings.documents.problems;
  const { name } = file;
  const kind = kindOf(name);
  const most = kind === 'pdf' ? MAX_PDF_BYTES : MAX_TEXT_BYTES;
  if (file.bytes === 0) throw new DocumentProblem(words.empty(name));
  if (isOfficeName(name)) throw new DocumentProblem(words.office(name));
  if (isBinaryName(name)) throw new DocumentProblem(words.binary(name));
  if (file.bytes > most) throw new DocumentProblem(words.tooLarge(name, file.bytes, most));
  const bytes = await file.read().catch(() => {
    throw new DocumentProblem(words.unreadable(name));
  });
  options.signal?.throwIfAborted();
  // Before they are handed to the worker, which leaves nothing of them here.
  const kindFound = isPdf(bytes) ? 'pdf' : kind;
  const text = await textOf(name, kind, bytes, options);
  if (text.trim() === '') throw new DocumentProblem(kindFound === 'pdf' ? words.scanned(name) : words.empty(name));
  const textBytes = new Blob([text]).size;
  if (textBytes > MAX_TEXT_BYTES) throw new DocumentProblem(words.tooLarge(name, textBytes, MAX_TEXT_BYTES));
  return { name, kind: kindFound, text };
}

async function textOf(name: string, kind: DocumentKind, bytes: Uint8Array, options: PdfOptions): Promise<string> {
  const words = strings.documents.problems;
  if (isPdf(bytes)) return pdf(name, bytes, options);
  if (kind === 'pdf') throw new DocumentProblem(words.damagedPdf(name));
  const text = decode(bytes, kind === 'html' ? declaredEncoding(bytes) : undefined);
  if (text === null) throw new DocumentProblem(words.binary(name));
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
    const words = strings.documents.problems;
    const isEncrypted = error instanceof PdfProblem && error.kind === 'encrypted';
    if (!(error instanceof PdfProblem)) console.error('a PDF cannot be read', error);
    throw new DocumentProblem(isEncrypted ? words.encrypted(name) : words.damagedPdf(name));
  }
}
