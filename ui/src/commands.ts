// The one list of what can be done from anywhere: the palette, the shortcuts and the shell's menu bar show and run it.
import type { App } from './app.svelte';
import { titleOf } from './chat/conversations.svelte';
import { strings } from './text';
import type { Shortcut } from './ui/shortcuts';

export type CommandId = keyof typeof strings.commands;
export type MenuName = 'app' | 'file' | 'edit' | 'view' | 'chat';

export interface AppCommand {
  id: CommandId;
  /** Where the menu bar has it. */
  menu: MenuName;
  shortcut?: Shortcut;
  /** Whether it can be done now; if left out, it always can. */
  isAvailable?: (app: App) => boolean;
  run: (app: App) => void;
}

const hasChat = (app: App) => app.navigation.page === 'chat' && app.chat.selected !== undefined;
const hasSaved = (app: App) => hasChat(app) && (app.chat.selected?.cache?.cached_tokens ?? 0) > 0;
const hasMessages = (app: App) => hasChat(app) && app.chat.selected?.title !== '';
const isListed = (app: App) => hasChat(app) && app.chat.selected?.is_private === false;
const isIdle = (app: App) => hasChat(app) && !app.chat.isSending && app.chat.thread?.isStreaming === false;

/** Runs something on the open chat. */
const onChat = (run: (app: App, id: string) => void) => (app: App) => {
  if (app.chat.selectedId !== null) run(app, app.chat.selectedId);
};

/** In the order of the menus. */
export const commands: readonly AppCommand[] = [
  { id: 'show_settings', menu: 'app', shortcut: { key: ',' }, run: (app) => app.navigation.goToSettings() },
  { id: 'new_chat', menu: 'file', shortcut: { key: 'n' }, run: (app) => app.newChat() },
  { id: 'new_private_chat', menu: 'file', shortcut: { key: 'n', shift: true }, run: (app) => app.newPrivateChat() },
  { id: 'new_folder', menu: 'file', run: (app) => app.folders.edit({}) },
  { id: 'new_persona', menu: 'file', run: (app) => app.personas.edit({}) },
  {
    id: 'persona_from_chat',
    menu: 'file',
    isAvailable: isListed,
    run: (app) => app.editPersonaFromChat(),
  },
  {
    id: 'export_chat',
    menu: 'file',
    isAvailable: hasMessages,
    run: onChat((app, id) => app.chatFiles.askForExport([id], titleOf(app.chat.selected ?? { title: '' }))),
  },
  {
    id: 'export_all_chats',
    menu: 'file',
    isAvailable: (app) => app.chat.list.items.length > 0,
    run: (app) => app.chatFiles.askForExport([], strings.chatFiles.all),
  },
  { id: 'import_chats', menu: 'file', run: (app) => void app.chatFiles.choose() },
  { id: 'import_cache', menu: 'file', run: (app) => void app.imports.choose() },
  {
    id: 'import_model',
    menu: 'file',
    isAvailable: (app) => app.modelImport.canChoose,
    run: (app) => void app.modelImport.choose(),
  },
  {
    id: 'export_saved',
    menu: 'file',
    shortcut: { key: 'e', shift: true },
    isAvailable: hasSaved,
    run: onChat((app, id) =>
      app.cache.askForExport({ type: 'conversation', id }, titleOf(app.chat.selected ?? { title: '' })),
    ),
  },
  {
    id: 'find_in_chat',
    menu: 'view',
    shortcut: { key: 'f' },
    isAvailable: hasChat,
    run: (app) => app.find.open(),
  },
  { id: 'search', menu: 'view', shortcut: { key: 'k' }, run: (app) => app.openPalette() },
  {
    id: 'toggle_sidebar',
    menu: 'view',
    shortcut: { key: 's', alt: true },
    run: (app) => app.navigation.toggle('sidebar'),
  },
  {
    id: 'toggle_inspector',
    menu: 'view',
    shortcut: { key: 'i', alt: true },
    isAvailable: (app) => app.navigation.page === 'chat',
    run: (app) => app.toggleInspector(),
  },
  { id: 'show_models', menu: 'view', shortcut: { key: '1', alt: true }, run: (app) => app.openModels() },
  { id: 'discover_models', menu: 'view', run: (app) => app.openModels('discover') },
  { id: 'show_saved', menu: 'view', shortcut: { key: '2', alt: true }, run: (app) => app.openSaved() },
  { id: 'show_monitor', menu: 'view', shortcut: { key: '3', alt: true }, run: (app) => app.navigation.go('monitor') },
  { id: 'show_ask', menu: 'view', shortcut: { key: '4', alt: true }, run: (app) => app.navigation.go('ask') },
  { id: 'show_shortcuts', menu: 'view', run: (app) => app.navigation.goToSettings('shortcuts') },
  {
    id: 'previous_chat',
    menu: 'chat',
    shortcut: { key: 'ArrowUp', alt: true },
    run: (app) => app.stepThroughChats(-1),
  },
  { id: 'next_chat', menu: 'chat', shortcut: { key: 'ArrowDown', alt: true }, run: (app) => app.stepThroughChats(1) },
  {
    id: 'edit_system_prompt',
    menu: 'chat',
    isAvailable: (app) => app.navigation.page === 'chat',
    run: (app) => (app.chat.isPromptOpen = true),
  },
  { id: 'regenerate', menu: 'chat', isAvailable: isIdle, run: (app) => void app.chat.regenerate() },
  {
    id: 'continue_answer',
    menu: 'chat',
    isAvailable: (app) => isIdle(app) && app.chat.thread?.last?.can_continue === true,
    run: (app) => void app.chat.continueAnswer(app.chat.thread?.last?.id ?? ''),
  },
  {
    id: 'show_probabilities',
    menu: 'chat',
    shortcut: { key: 'p', alt: true },
    isAvailable: (app) =>
      hasChat(app) &&
      (app.chat.thread?.messages.findLast(({ role }) => role === 'assistant')?.segments.length ?? 0) > 0,
    run: (app) => app.chat.toggleProbabilities(),
  },
  {
    id: 'compare',
    menu: 'chat',
    shortcut: { key: 'm', shift: true },
    isAvailable: (app) =>
      app.navigation.page === 'chat' && (app.canCompare || app.chat.compare.isOpenIn(app.chat.selectedId)),
    run: (app) => app.toggleCompare(),
  },
  { id: 'edit_message', menu: 'chat', isAvailable: isIdle, run: (app) => app.chat.edits.open() },
  {
    id: 'branch_chat',
    menu: 'chat',
    isAvailable: (app) => isIdle(app) && app.chat.thread?.last !== undefined,
    run: (app) => void app.chat.branchOff(app.chat.thread?.last?.id ?? ''),
  },
  {
    id: 'stop',
    menu: 'chat',
    shortcut: { key: '.' },
    isAvailable: (app) => app.chat.thread?.isStreaming === true,
    run: (app) => void app.chat.stop(),
  },
  { id: 'rename_chat', menu: 'chat', isAvailable: hasChat, run: onChat((app, id) => app.rename(id)) },
  {
    id: 'pin_chat',
    menu: 'chat',
    shortcut: { key: 'p', shift: true },
    isAvailable: isListed,
    run: onChat((app, id) => void app.chat.actions.pin(id, !app.chat.selected?.is_pinned)),
  },
  {
    id: 'archive_chat',
    menu: 'chat',
    isAvailable: isListed,
    run: onChat((app, id) => void app.chat.actions.archive([id], !app.chat.selected?.is_archived)),
  },
  {
    id: 'save_starting_point',
    menu: 'chat',
    isAvailable: hasSaved,
    run: onChat((app, id) => app.cache.askForName(id)),
  },
  {
    id: 'delete_chat',
    menu: 'chat',
    shortcut: { key: 'Backspace' },
    isAvailable: hasChat,
    run: onChat((app, id) => void app.chat.actions.remove([id])),
  },
  {
    id: 'unload_model',
    menu: 'chat',
    isAvailable: (app) => app.status.loaded !== null,
    run: (app) => void app.models.unload(),
  },
];

export function isAvailable(command: AppCommand, app: App): boolean {
  return command.isAvailable?.(app) ?? true;
}

/** Runs the command of this name, if there is one and it can be done now. */
export function runCommand(id: string, app: App): void {
  const command = commands.find((known) => known.id === id);
  if (app.isReady && command && isAvailable(command, app)) command.run(app);
}
