// The text of a PDF, by pdf.js, which is fetched with the first one and works in a worker. It is the build for older browsers:
// the other one calls functions that the Safari of macOS 14 does not have.
import workerUrl from 'pdfjs-dist/legacy/build/pdf.worker.min.mjs?url';
import type { TextItem, TextMarkedContent } from 'pdfjs-dist/types/src/display/api';
import { ownWorker } from './trusted';

export interface PdfOptions {
  signal?: AbortSignal;
  /** How many pages of how many have been read. */
  onPage?: (page: number, total: number) => void;
}

/** Why a PDF has no text that can be read. */
export class PdfProblem extends Error {
  constructor(readonly kind: 'encrypted' | 'damaged') {
    super(kind);
  }
}

/** The text of all pages; empty where they are pictures. Rejects with a {@link PdfProblem}. */
export async function pdfText(bytes: Uint8Array, { signal, onPage }: PdfOptions = {}): Promise<string> {
  const [{ getDocument, PDFWorker }, { OwnFiles }] = await Promise.all([
    import('pdfjs-dist/legacy/build/pdf.mjs'),
    import('./cmaps'),
  ]);
  signal?.throwIfAborted();
  const port = ownWorker(workerUrl);
  const worker = PDFWorker.create({ port });
  // Nothing is drawn; with the system's fonts no files of fonts are asked for. Character maps come from our own files.
  const task = getDocument({
    data: bytes,
    worker,
    disableFontFace: true,
    useSystemFonts: true,
    useWasm: false,
    cMapUrl: 'cmaps/',
    cMapPacked: true,
    useWorkerFetch: false,
    BinaryDataFactory: OwnFiles,
    verbosity: 0,
  });
  try {
    const pdf = await task.promise;
    const pages: string[] = [];
    for (let number = 1; number <= pdf.numPages; number++) {
      signal?.throwIfAborted();
      const page = await pdf.getPage(number);
      const { items } = await page.getTextContent();
      pages.push(pageText(items));
      page.cleanup();
      onPage?.(number, pdf.numPages);
    }
    return pages
      .filter((text) => text !== '')
      .join('\n\n')
      .trim();
  } catch (error) {
    signal?.throwIfAborted();
    const name = error instanceof Error ? error.name : '';
    if (name === 'PasswordException') throw new PdfProblem('encrypted');
    if (name === 'InvalidPDFException' || name === 'FormatError' || name === 'UnknownErrorException')
      throw new PdfProblem('damaged');
    throw error;
  } finally {
    await task.destroy().catch(() => undefined);
    worker.destroy();
    port.terminate();
  }
}

type Item = TextItem | TextMarkedContent;

/** The lines of a page; where the next one is far below there is an empty one. */
export function pageText(items: Item[]): string {
  let text = '';
  let before: TextItem | null = null;
  for (const item of items) {
    if (!('str' in item)) continue;
    const startsLine = text === '' || text.endsWith('\n');
    if (startsLine && before !== null && item.str.trim() !== '' && isFarBelow(before, item)) text += '\n';
    text += item.str;
    if (item.hasEOL) text = `${text.trimEnd()}\n`;
    if (item.str.trim() !== '') before = item;
  }
  return text
    .replaceAll(/[ \t]+\n/g, '\n')
    .replaceAll(/\n{3,}/g, '\n\n')
    .trim();
}

function isFarBelow(before: TextItem, item: TextItem): boolean {
  const height = before.height || item.height;
  const distance = Number(before.transform[5]) - Number(item.transform[5]);
  return height > 0 && Math.abs(distance) > 1.7 * height;
}
