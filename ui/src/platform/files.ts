// Files in a browser: chosen with its file dialog, saved among its downloads.
import { strings } from '../text';

/** Asks for a prompt cache file; null: the user cancelled. */
export function pickFile(): Promise<File | null> {
  return pick('.safetensors');
}

/** Asks for a file of chats; null: the user cancelled. */
export function pickChatFile(): Promise<File | null> {
  return pick('.json,.jsonl,.ndjson');
}

/** Asks for files of any kind; none: the user cancelled. */
export function pickFiles(): Promise<File[]> {
  return pickSome('', true);
}

async function pick(endings: string): Promise<File | null> {
  const [file] = await pickSome(endings, false);
  return file ?? null;
}

function pickSome(endings: string, multiple: boolean): Promise<File[]> {
  const input = document.createElement('input');
  input.type = 'file';
  input.accept = endings;
  input.multiple = multiple;
  return new Promise((resolve) => {
    input.addEventListener('change', () => resolve([...(input.files ?? [])]));
    input.addEventListener('cancel', () => resolve([]));
    input.click();
  });
}

/** The longest header of a prompt cache file that the core reads, in bytes. */
const MAX_HEADER_BYTES = 8 * 2 ** 20;
/** Such a file begins with the length of its header: a little-endian 64-bit number. */
const LENGTH_BYTES = 8;

/** Why a file cannot be a prompt cache, by its name and first bytes, as a sentence; null: it may be one. */
export async function whyNoCacheFile(file: File): Promise<string | null> {
  if (!/\.safetensors$/i.test(file.name)) return strings.imports.wrongEnding(file.name);
  const first = await file
    .slice(0, LENGTH_BYTES)
    .arrayBuffer()
    .catch(() => null);
  if (first === null) return strings.imports.unreadable(file.name);
  const headerBytes = first.byteLength === LENGTH_BYTES ? new DataView(first).getBigUint64(0, true) : 0n;
  // The shortest header is {}.
  const isPlausible = headerBytes >= 2n && headerBytes <= Math.min(MAX_HEADER_BYTES, file.size - LENGTH_BYTES);
  return isPlausible ? null : strings.imports.wrongBeginning(file.name);
}

/** Hands a file to the browser's downloads. */
export function saveFile(content: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  // The download must have begun by then; no event says when it has.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
