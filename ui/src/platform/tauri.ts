// A core in the same process: the desktop shell's one command, with replies on a channel, and its file dialogs.
import { Channel, invoke } from '@tauri-apps/api/core';
import { listen } from '@tauri-apps/api/event';
import { getCurrentWebview } from '@tauri-apps/api/webview';
import { isMac } from '../ui/shortcuts';
import {
  CallError,
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
  ImportPreview,
  Reply,
} from './wire';

const RETRY_MS = 1000;

export class TauriPlatform implements Platform {
  readonly hasOwnTitleBar = isMac;

  call(command: Command): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const channel = new Channel<Frame>((frame) => {
        if ('reply' in frame) resolve(frame.reply);
        else if ('failure' in frame) reject(new CallError(frame.failure.code, frame.failure.message));
      });
      invoke('call', { command, channel }).catch((error: unknown) =>
        reject(new CallError('unreachable', sentenceOf(error))),
      );
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

  chooseModelFile(): Promise<string | null> {
    return ask('import_model', {});
  }

  chooseFolder(): Promise<string | null> {
    return ask('choose_folder', {});
  }

  onFileDrop(run: (dropped: Dropped) => void, onHover: (isOver: boolean) => void): () => void {
    const listening = getCurrentWebview().onDragDropEvent(({ payload }) => {
      onHover(payload.type === 'enter' || payload.type === 'over');
      const path = payload.type === 'drop' ? payload.paths[0] : undefined;
      if (path === undefined) return;
      if (isModel(path)) run({ type: 'model', imported: ask('import_model', { path }) });
      else if (isChatFile(path)) {
        const name = path.split(/[/\\]/).at(-1) ?? path;
        run({ type: 'chats', name, imported: ask('import_chats', { path }) });
      } else run({ type: 'cache', preview: ask('import_cache', { path }) });
    });
    return () => void listening.then((stop) => stop());
  }
}

/** A GGUF file, or a path without the ending of a file, which is a folder. Any other file is named by the one who refuses it. */
function isModel(path: string): boolean {
  return /\.gguf$/i.test(path) || !/\.[a-z]{2,12}$/i.test(path);
}

/** Invokes a command of the shell that opens or takes files. */
async function ask<T>(command: string, values: Record<string, unknown>): Promise<T> {
  try {
    return await invoke<T>(command, values);
  } catch (error) {
    if (isFailure(error)) throw new CallError(error.code, error.message);
    throw new CallError('unreachable', sentenceOf(error));
  }
}

function isFailure(error: unknown): error is Failure {
  return typeof error === 'object' && error !== null && 'code' in error && 'message' in error;
}
