// Files before they are documents: chosen, dropped or pasted, in a browser or from the shell.

/** A file whose bytes are read when they are wanted. */
export interface SourceFile {
  /** Its name; of a file in a folder its path there. */
  name: string;
  bytes: number;
  read(): Promise<Uint8Array>;
}

/** What was dropped: files, or a folder with all files in it that could be listed. */
export interface Drop {
  /** The folder's name; null: these are files that were dropped themselves. */
  folder: string | null;
  files: SourceFile[];
  /** There were more than could be listed. */
  isCut: boolean;
}

const collator = new Intl.Collator(undefined, { numeric: true });

/** The order in which files are listed: the ninth part before the tenth. */
export const byName = (a: SourceFile, b: SourceFile): number => collator.compare(a.name, b.name);

/** More files nobody looks through. */
export const MAX_LISTED = 2000;

export function ofFile(file: File, name = file.name): SourceFile {
  return { name, bytes: file.size, read: async () => new Uint8Array(await file.arrayBuffer()) };
}

/** The files of a folder that was dropped on a page, by their paths. Folders that are never wanted are not looked into. */
export async function listFolder(root: FileSystemDirectoryEntry): Promise<Drop> {
  const files: SourceFile[] = [];
  let isCut = false;
  const visit = async (folder: FileSystemDirectoryEntry, path: string): Promise<void> => {
    for (const entry of await entriesOf(folder)) {
      if (files.length >= MAX_LISTED) return void (isCut = true);
      const name = path + entry.name;
      if (isFolder(entry)) {
        if (isSkippedFolder(entry.name)) files.push(skipped(`${name}/`));
        else await visit(entry, `${name}/`);
      } else if (isFile(entry)) {
        // A link that leads nowhere is no file.
        const file = await fileOf(entry).catch(() => null);
        if (file) files.push(ofFile(file, name));
      }
    }
  };
  await visit(root, '');
  return { folder: root.name, files, isCut };
}

/** A folder that is not looked into, in the place of its files. */
function skipped(name: string): SourceFile {
  return { name, bytes: 0, read: () => Promise.reject(new Error(`${name} is a folder`)) };
}

const isFolder = (entry: FileSystemEntry): entry is FileSystemDirectoryEntry => entry.isDirectory;
const isFile = (entry: FileSystemEntry): entry is FileSystemFileEntry => entry.isFile;

function fileOf(entry: FileSystemFileEntry): Promise<File> {
  return new Promise((resolve, reject) => entry.file(resolve, reject));
}

/** All entries; a reader hands out a hundred at a time. */
async function entriesOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const all: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return all;
    all.push(...some);
  }
}

/** Folders that programs fill. */
const PROGRAMS = new Set(['node_modules', 'target', 'dist', 'build', '__pycache__', 'venv', 'vendor', 'Pods']);

/** Whether a folder is left out with all that is in it: a hidden one, or one that a program fills. */
export function isSkippedFolder(name: string): boolean {
  return name.startsWith('.') || PROGRAMS.has(name);
}
