// The one interface between the app and whatever runs its core: a desktop shell or a server on this machine.
import type { Drop, SourceFile } from '../documents/sources';
import { strings } from '../text';
import { failureSentence } from './failures';
import type {
  CacheFileLayout,
  CacheSource,
  ChatFileFormat,
  ChatsImported,
  Command,
  Event,
  Failure,
  FailureCode,
  FailureKind,
  ImportedModel,
  ImportPreview,
  Reply,
} from './wire';

/** The state of the event stream. `refused`: the server does not know our token, so trying again would not help. */
export type Connection = 'connecting' | 'open' | 'reconnecting' | 'refused';

/** Options of previewing a file. */
export interface ImportOptions {
  /** Called with the file's name as soon as it is known, on platforms that know it. */
  onChosen?: (fileName: string) => void;
  /** Aborted when the user cancels; stops the transfer. */
  signal?: AbortSignal;
}

/** What was dropped on the window: a prompt cache to look into, a model or chats that are being imported, or documents. */
export type Dropped =
  | { type: 'cache'; preview: Promise<ImportPreview> }
  | { type: 'model'; imported: Promise<ImportedModel | null> }
  | { type: 'chats'; name: string; imported: Promise<ChatsImported | null> }
  | { type: 'documents'; dropped: Promise<Drop> };

/** A line of a menu. */
export interface MenuCommand {
  id: string;
  label: string;
  /** As the shell writes it: `CmdOrCtrl+Shift+N`. */
  accelerator: string | null;
}

/** The commands of each menu, and the words for what the system adds to the menus. */
export interface MenuBar {
  commands: Record<string, MenuCommand[]>;
  words: Record<string, string>;
}

export interface Platform {
  /** Runs one command. Rejects with a {@link CallError}. */
  call(command: Command): Promise<Reply>;
  /** Delivers events in order until the returned function is called. After each `open` the state has to be asked for again. */
  subscribe(onEvent: (event: Event) => void, onState: (state: Connection) => void): () => void;
  /** The window has no bar of its own above the page: the page draws it, and leaves room for the window's buttons. */
  readonly hasOwnTitleBar?: boolean;
  /** Calls back with the id of a command that is chosen in the menu bar or the menu-bar item; only on platforms that have one. */
  onCommand?(run: (id: string) => void): () => void;
  /** Shows commands in the menu bar; only on platforms that have one. */
  showMenus?(bar: MenuBar): void;
  /** Writes a prompt cache to a file that the user chooses; false: they cancelled. Rejects with a {@link CallError}. */
  exportCache(source: CacheSource, layout: CacheFileLayout, suggestedName: string): Promise<boolean>;
  /** Writes the answers of a job to a CSV file: where the user chooses, or among a browser's downloads; false: they cancelled. Rejects with a {@link CallError}. */
  exportJob(id: string, suggestedName: string): Promise<boolean>;
  /** Writes chats, without ids all, to a file: where the user chooses, or among a browser's downloads; false: they cancelled. Rejects with a {@link CallError}. */
  exportChats(ids: string[], format: ChatFileFormat, suggestedName: string): Promise<boolean>;
  /** Imports the chats of a file. Without a file it asks for one; null: the user cancelled. `onChosen`: its name is known. Rejects with a {@link CallError}. */
  importChats(file?: File, onChosen?: (name: string) => void): Promise<ChatsImported | null>;
  /** Asks for files to attach; none: the user cancelled. Rejects with a {@link CallError}. */
  chooseDocuments(): Promise<SourceFile[]>;
  /** Writes a text to a file: where the user chooses, or among a browser's downloads; false: they cancelled. Rejects with a {@link CallError}. */
  saveText(text: string, suggestedName: string): Promise<boolean>;
  /**
   * Previews a prompt cache file without importing it yet. Without a file it asks for one; null: the user cancelled.
   * Rejects with a {@link CallError}.
   */
  importCache(file?: File, options?: ImportOptions): Promise<ImportPreview | null>;
  /** Calls back when files are dropped on the window; only on platforms that do not tell the page itself. `onHover`: files are dragged over it. */
  onFileDrop?(run: (dropped: Dropped) => void, onHover: (isOver: boolean) => void): () => void;
  /** Asks for a GGUF file or a model folder and imports it: the model; null: the user cancelled. Progress comes as events. Rejects with a {@link CallError}. */
  chooseModelFile?(): Promise<ImportedModel | null>;
  /** Asks for a folder; null: the user cancelled. */
  chooseFolder?(): Promise<string | null>;
  /** Sends a GGUF file to the core, which imports it: the model; null: it was cancelled. Rejects with a {@link CallError}, unless `signal` stopped it. */
  importModel?(file: File, signal: AbortSignal): Promise<ImportedModel | null>;
}

/** A command that did not work; `message` is a sentence to show. `unreachable`: the core never answered. */
export class CallError extends Error {
  constructor(
    readonly code: FailureCode | 'unreachable',
    message: string,
    readonly kind: FailureKind | null = null,
  ) {
    super(message);
    this.name = 'CallError';
  }

  static of(failure: Failure): CallError {
    return new CallError(failure.code, failureSentence(failure), failure.kind ?? null);
  }
}

/** The sentence to show for anything that was thrown by a call. */
export function sentenceOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Calls for a command that answers nothing, and reports why it failed; returns whether it worked. */
export async function runOrReport(
  { platform, report }: { platform: Platform; report: (error: unknown) => void },
  command: Command,
): Promise<boolean> {
  try {
    await platform.call(command);
    return true;
  } catch (error) {
    report(error);
    return false;
  }
}

/** A name as a name of a prompt cache file. */
export function cacheFileName(name: string): string {
  return fileName(name, 'safetensors', strings.imports.exportName);
}

/** The endings of the files of chats. */
export const chatFileEndings: Record<ChatFileFormat, string> = { json: 'json', markdown: 'md', openai: 'jsonl' };

/** Whether a file may be one of chats, by its name. */
export function isChatFile(name: string): boolean {
  return /\.(json|jsonl|ndjson)$/i.test(name);
}

/** Whether the beginning of a JSON file is that of chats: one of ours, or an export of a program whose chats are read. */
export function beginsAsChats(start: string): boolean {
  return /"(cairn-chats|mapping|conversations|messages|chat_messages|history)"/.test(start);
}

/** A name as a file name that every file system takes; `fallback` if nothing of it is left. */
export function fileName(name: string, ending: string, fallback: string): string {
  const plain = name
    .replaceAll(/[\p{Cc}\p{Cf}/\\:*?"<>|]+/gu, ' ')
    .replaceAll(/\s+/g, ' ')
    .replace(/^[ .]+/, '');
  return `${[...plain].slice(0, 60).join('').trim() || fallback}.${ending}`;
}
