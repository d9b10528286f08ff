// What the palette finds: chats, starting points, models and commands, the best first.
import type { App } from '../app.svelte';
import { titleOf } from '../chat/conversations.svelte';
import { commands, isAvailable } from '../commands';
import { shortModelName } from '../status/engine';
import { strings } from '../text';
import { shortcutText } from '../ui/shortcuts';

export interface PaletteEntry {
  id: string;
  /** The words that were searched. */
  label: string;
  /** What stands beside them. */
  detail: string;
  /** The shortcut that does the same. */
  keys: string;
  /** The id of the chat whose saved context is shown before the words. */
  conversationId?: string;
  run: () => void;
}

export interface PaletteGroup {
  name: string;
  entries: PaletteEntry[];
}

const MOST_RECENT = 4;
const MOST_CHATS = 6;
const MOST_OTHERS = 5;

/** How well words match a query: 0 not at all, 3 from the beginning. Every word of the query has to be in them. */
export function matchOf(words: string, query: string): number {
  const [text, wanted] = [fold(words), fold(query)];
  if (wanted === '') return 1;
  if (text.startsWith(wanted)) return 3;
  const parts = wanted.split(' ');
  if (!parts.every((part) => text.includes(part))) return 0;
  return parts.every((part) => text.startsWith(part) || text.includes(` ${part}`)) ? 2 : 1;
}

/** Case, accents and spaces do not matter. */
function fold(text: string): string {
  return text.normalize('NFKD').replaceAll(/\p{M}/gu, '').toLowerCase().trim().replaceAll(/\s+/g, ' ');
}

export function paletteGroups(app: App, query: string): PaletteGroup[] {
  const isEmpty = query.trim() === '';
  const words = strings.palette;
  const best = (entries: PaletteEntry[], most: number) =>
    entries
      .map((entry) => ({ entry, match: matchOf(entry.label, query) }))
      .filter(({ match }) => match > 0)
      .sort((a, b) => b.match - a.match)
      .slice(0, most)
      .map(({ entry }) => entry);
  const groups: PaletteGroup[] = [
    { name: isEmpty ? words.recent : words.chats, entries: best(chatEntries(app), isEmpty ? MOST_RECENT : MOST_CHATS) },
    { name: words.startingPoints, entries: best(startingPointEntries(app), MOST_OTHERS) },
    {
      name: words.models,
      entries: best([...modelEntries(app), ...(isEmpty ? [] : downloadEntries(app))], MOST_OTHERS),
    },
    { name: words.actions, entries: best(commandEntries(app), isEmpty ? commands.length : MOST_OTHERS) },
  ];
  if (!isEmpty) groups.push({ name: words.ask, entries: [askEntry(app, query.trim())] });
  return groups.filter(({ entries }) => entries.length > 0);
}

function chatEntries({ chat, navigation }: App): PaletteEntry[] {
  return chat.list.items.map((conversation) => {
    const { id } = conversation;
    const isOpen = id === chat.selectedId && navigation.page === 'chat';
    const detail = isOpen ? strings.palette.openNow : strings.pieces.ago(conversation.updated_at_ms, Date.now());
    const run = () => {
      navigation.go('chat');
      chat.select(id);
      chat.numFocusRequests++;
    };
    return { id: `chat-${id}`, label: titleOf(conversation), detail, keys: '', conversationId: id, run };
  });
}

function startingPointEntries(app: App): PaletteEntry[] {
  const usable = app.cache.startingPoints.filter(({ problem }) => problem === null);
  return usable.map(({ id, name, tokens }) => ({
    id: `start-${id}`,
    label: strings.palette.startFrom(name),
    detail: strings.common.tokens(tokens),
    keys: '',
    run: () => void app.startFrom(id),
  }));
}

function modelEntries({ chat, models, status }: App): PaletteEntry[] {
  return models.loadable.map(({ name, path, bytes }) => ({
    id: `model-${path}`,
    label: strings.palette.use(shortModelName(name)),
    detail: status.model === name ? strings.palette.loaded : strings.common.bytes(bytes),
    keys: '',
    run: () => {
      if (status.model !== name) void models.load(name);
      chat.numFocusRequests++;
    },
  }));
}

/** Recommended models that fit and are not here. */
function downloadEntries(app: App): PaletteEntry[] {
  const { discover, downloads, models } = app;
  const wanted = (discover.recommended ?? []).filter(
    ({ name, facts }) => !models.get(name) && !downloads.get(name) && facts.memory.fit !== 'too_large',
  );
  return wanted.map(({ name, download_bytes }) => ({
    id: `download-${name}`,
    label: strings.palette.download(shortModelName(name)),
    detail: strings.common.bytes(download_bytes),
    keys: '',
    run: () => {
      app.openModels('discover');
      void downloads.start(name);
    },
  }));
}

function commandEntries(app: App): PaletteEntry[] {
  const usable = commands.filter((command) => command.id !== 'search' && isAvailable(command, app));
  return usable.map((command) => ({
    id: `command-${command.id}`,
    label: strings.commands[command.id],
    detail: '',
    keys: command.shortcut ? shortcutText(command.shortcut) : '',
    run: () => command.run(app),
  }));
}

/** A new chat that begins with what was typed; it is not sent yet. */
function askEntry(app: App, text: string): PaletteEntry {
  const run = () => {
    app.newChat();
    app.chat.draft = text;
  };
  return { id: 'ask', label: strings.palette.newChatWith(text), detail: '', keys: '', run };
}
