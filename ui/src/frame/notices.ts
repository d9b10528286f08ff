// Actions for the core's notices and for commands that it refuses.
import type { App } from '../app.svelte';
import { CallError } from '../platform/platform';
import type { NoticeKind, UnexpectedQuit } from '../platform/wire';
import { strings } from '../text';
import type { ToastAction, ToastOptions } from '../ui/toasts.svelte';

/** A notice of what happened while no one looked stays until it is read. setTimeout takes no longer time. */
const STAYS_MS = 2 ** 31 - 1;

/** A page that outlives several crashes shows the newest. */
const QUIT = { milliseconds: STAYS_MS, topic: 'quit' };

/** It says what to do before Cairn quits. The newest says where the chats are now. */
const DATABASE_FILE = { milliseconds: STAYS_MS, topic: 'database_file' };

/** How a notice is shown. */
export function noticeOptions(app: App, kind: NoticeKind | null | undefined): ToastOptions {
  switch (kind?.type) {
    case 'started_quietly': {
      const run = () => void app.endQuietStart();
      return { ...QUIT, actions: [{ label: strings.unexpectedQuit.continueNormally, run }] };
    }
    case 'quit_unexpectedly':
      return { ...QUIT, actions: quitActions(app, kind.quit) };
    case 'database_saved':
    case 'database_gone':
      return DATABASE_FILE;
    default:
      return {};
  }
}

function quitActions(app: App, quit: UnexpectedQuit): ToastAction[] {
  const { conversation_id, is_set_aside, job_id, model } = quit;
  const words = strings.unexpectedQuit;
  if (job_id !== null) return [{ label: words.openJob, run: () => app.openJob(job_id) }];
  if (is_set_aside && model !== null) return [app.chatModel.useAnywayAction(model)];
  if (conversation_id === null) return [];
  const isNeeded = () => app.navigation.page !== 'chat' || app.chat.selectedId !== conversation_id;
  return [{ label: words.openChat, run: () => app.openConversation(conversation_id), isNeeded }];
}

/** Actions that help at once when a command has failed. */
export function failureActions(app: App, error: unknown): ToastAction[] {
  if (!(error instanceof CallError) || error.kind?.type !== 'model_set_aside') return [];
  return [app.chatModel.useAnywayAction(error.kind.model)];
}
