// A core in the same process: the desktop shell's one command, with replies on a channel, and its file dialogs.
import { Channel, invoke } from '@tauri-apps/api/core';
import { listen } from '@tauri-apps/api/event';
import { getCurrentWebview } from '@tauri-apps/api/webview';
import type { SourceFile } from '../documents/sources';
import { isMac } from '../ui/shortcuts';
import {
  CallError,
  beginsAsChats,
  isChatFile,
  sentenceOf,
  type Connection,
  type Dropped,
  type MenuBar,
  type Platform,
} from './platform';
import type {
  CacheFileLayout,
  CacheSource,
  ChatFileFormat,
  ChatsImported,
  Command,
  Event,
  Failure,
  Frame,
  ImportedModel,
  ImportPreview,
  Reply,
} from './wire';

const RETRY_MS = 1000;
/** Larger JSON files are not looked into before they are imported. */
const MAX_SNIFFED_BYTES = 16 * 2 ** 20;
/** How much of a file is looked at to tell whether it is one of chats. */
const LOOK_BYTES = 65_536;

export class TauriPlatform implements Platform {
  readonly hasOwnTitleBar = isMac;

  call(command: Command): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const channel = new Channel<Frame>((frame) => {
        if ('reply' in frame) resolve(frame.reply);
        else if ('failure' in frame) reject(CallError.of(frame.failure));
      });
      invoke('call', { command, channel }).catch((error: unknown) => reject(refusalOf(error)));
    });
  }

  subscribe(onEvent: (event: Event) => void, onState: (state: Connection) => void): () => void {
    let isStopped = false;
    let timer: ReturnType<typeof setTimeout> | undefined;

    const again = () => {
      if (isStopped) return;
      onState('reconnecting');
      timer = setTimeout(open, RETRY_MS);
    };
    const open = () => {
      const channel = new Channel<Frame>((frame) => {
        if (isStopped) return;
        if ('event' in frame) onEvent(frame.event);
        else if ('reply' in frame) onState('open');
        else again();
      });
      invoke('call', { command: { type: 'subscribe' } satisfies Command, channel }).catch(again);
    };

    onState('connecting');
    open();
    return () => {
      isStopped = true;
      clearTimeout(timer);
    };
  }

  onCommand(run: (id: string) => void): () => void {
    const listening = listen<string>('command', ({ payload }) => run(payload));
    return () => void listening.then((stop) => stop());
  }

  /** Only a Mac has a menu bar; elsewhere the window listens to the shortcuts itself. */
  readonly showMenus = isMac
    ? (bar: MenuBar) => void invoke('show_menus', { bar }).catch((error: unknown) => console.error(error))
    : undefined;

  exportCache(source: CacheSource, layout: CacheFileLayout, suggestedName: string): Promise<boolean> {
    return ask('export_cache', { source, layout, suggestedName });
  }

  exportJob(id: string, suggestedName: string): Promise<boolean> {
    return ask('export_job', { id, suggestedName });
  }

  exportChats(ids: string[], format: ChatFileFormat, suggestedName: string): Promise<boolean> {
    return ask('export_chats', { ids, format, suggestedName });
  }

  importChats(): Promise<ChatsImported | null> {
    return ask('import_chats', {});
  }

  saveText(text: string, suggestedName: string): Promise<boolean> {
    return ask('save_text', { text, suggestedName });
  }

  importCache(): Promise<ImportPreview | null> {
    return ask('import_cache', {});
  }

  async chooseDocuments(): Promise<SourceFile[]> {
    return (await ask<ListedFile[]>('choose_documents', {})).map(ofListed);
  }

  chooseModelFile(): Promise<ImportedModel | null> {
    return ask('import_model', {});
  }

  chooseFolder(): Promise<string | null> {
    return ask('choose_folder', {});
  }

  onFileDrop(run: (dropped: Dropped) => void, onHover: (isOver: boolean) => void): () => void {
    const listening = getCurrentWebview().onDragDropEvent(({ payload }) => {
      onHover(payload.type === 'enter' || payload.type === 'over');
      if (payload.type === 'drop' && payload.paths.length > 0) void sort(payload.paths, run);
    });
    return () => void listening.then((stop) => stop());
  }
}

/** A file that the shell lists, because it was chosen or dropped. */
interface ListedFile {
  path: string;
  /** Its name, or its path within the folder that was dropped. */
  name: string;
  bytes: number;
}

/** What the shell says of the paths that were dropped. */
interface ListedDrop {
  /** The name of a folder that was dropped alone. */
  folder: string | null;
  is_model: boolean;
  files: ListedFile[];
  is_cut: boolean;
}

function ofListed({ path, name, bytes }: ListedFile): SourceFile {
  const read = async () => new Uint8Array(await ask<ArrayBuffer>('read_document', { path }));
  return { name, bytes, read };
}

/** Says what was dropped, by what the files are. */
async function sort(paths: string[], run: (dropped: Dropped) => void): Promise<void> {
  const [path = ''] = paths;
  const only = paths.length === 1 ? path : '';
  const model = /\.gguf$/i.test(only) ? only : firstPart(paths);
  if (model !== null) return run({ type: 'model', imported: ask('import_model', { path: model }) });
  if (/\.safetensors$/i.test(only)) return run({ type: 'cache', preview: ask('import_cache', { path }) });
  const listed = ask<ListedDrop>('list_dropped', { paths });
  // Whoever is told of the drop shows why it failed.
  const drop = await listed.catch(() => null);
  if (drop?.is_model) return run({ type: 'model', imported: ask('import_model', { path }) });
  const [file] = drop?.files ?? [];
  if (only !== '' && file && drop?.folder === null && isChatFile(path) && (await isOfChats(file)))
    return run({ type: 'chats', name: file.name, imported: ask('import_chats', { path }) });
  const dropped = listed.then(({ folder, files, is_cut }) => ({ folder, files: files.map(ofListed), isCut: is_cut }));
  run({ type: 'documents', dropped });
}

/** The first part of a split model, where nothing but parts of it was dropped: it takes the others with it. */
function firstPart(paths: string[]): string | null {
  const [first = '', ...others] = [...paths].sort();
  const whole = (path: string) => /^(.*)-\d{5}-of-(\d{5})\.gguf$/i.exec(path)?.slice(1).join('-of-');
  const model = whole(first);
  return model !== undefined && others.every((other) => whole(other) === model) ? first : null;
}

async function isOfChats(file: ListedFile): Promise<boolean> {
  // More than a page would read as a document: only chats are that long.
  if (file.bytes > MAX_SNIFFED_BYTES) return true;
  const bytes = await ofListed(file)
    .read()
    .catch(() => null);
  return bytes === null || beginsAsChats(new TextDecoder().decode(bytes.subarray(0, LOOK_BYTES)));
}

/** Invokes a command of the shell that opens or takes files. */
async function ask<T>(command: string, values: Record<string, unknown>): Promise<T> {
  try {
    return await invoke<T>(command, values);
  } catch (error) {
    throw refusalOf(error);
  }
}

/** The shell's own sentence, or why it cannot be reached. */
function refusalOf(error: unknown): CallError {
  return isFailure(error) ? CallError.of(error) : new CallError('unreachable', sentenceOf(error));
}

function isFailure(error: unknown): error is Failure {
  return typeof error === 'object' && error !== null && 'code' in error && 'message' in error;
}
