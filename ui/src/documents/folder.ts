// Which files of a folder can be attached, and why others cannot.
import { isBinaryName, kindOf } from './kinds';
import { MAX_PDF_BYTES, MAX_TEXT_BYTES } from './read';
import { isSkippedFolder, type SourceFile } from './sources';

export type LeftOut = 'hidden' | 'program' | 'binary' | 'empty' | 'tooLarge';

/** Why a file of a folder is not offered; null: it is. Lock files are written by programs and are long. */
export function whyLeftOut({ name, bytes }: SourceFile): LeftOut | null {
  const parts = name.split('/');
  const last = parts.at(-1) ?? name;
  const folders = parts.slice(0, -1);
  if (folders.some((folder) => folder.startsWith('.')) || last.startsWith('.')) return 'hidden';
  if (folders.some(isSkippedFolder) || /^(package-lock\.json|.*\.lock|.*\.min\.(js|css)|.*\.map)$/.test(last))
    return 'program';
  if (isBinaryName(last)) return 'binary';
  if (bytes === 0) return 'empty';
  return bytes > (kindOf(name) === 'pdf' ? MAX_PDF_BYTES : MAX_TEXT_BYTES) ? 'tooLarge' : null;
}
