// What the palette finds: chats by title and by what they say, personas, starting points, saved context, models and commands,
// the best first.
import type { App } from '../app.svelte';
import { isUnsent, titleOf } from '../chat/conversations.svelte';
import { commands, isAvailable } from '../commands';
import { shortModelName } from '../status/engine';
import type { ExcerptPiece, FoundDocument } from '../platform/wire';
import { strings } from '../text';
import { shortcutText } from '../ui/shortcuts';

export interface PaletteEntry {
  id: string;
  label: string;
  /** The words that are searched instead of the label. */
  searched?: string;
  /** What stands beside them. */
  detail: string;
  /** Pieces of a message, instead of that. */
  excerpt?: ExcerptPiece[];
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
const MOST_MESSAGES = 8;
/** As many characters stand before a word that was found. */
const MOST_BEFORE = 14;
/** A longer name of a document is cut. */
const MOST_NAME = 18;
const MOST_SAVED = 3;
/** Signs of Markdown in a text whose lines are joined: of emphasis, code, headings and quotes, and where links lead. */
const SIGNS =
  /\*+(?=\S)|(?<=\S)\*+|`+|~~|(?<![\p{L}\p{N}_])_+(?=\S)|(?<=\S)_+(?![\p{L}\p{N}_])|(?<=^…?|\s)(?:#{1,6}|>) |!?\[(?=[^\]]*\]\()|\]\([^)]*\)/gu;
/** Where messages stand among groups by their best match: behind words that begin as the query does. */
const MESSAGES_MATCH = 1.5;

/** How well words match a query: 0 not at all, 3 from the beginning. Every word of the query has to be in them. */
export function matchOf(words: string, query: string): number {
  const [text, wanted] = [fold(words), fold(query)];
  if (wanted === '') return 1;
  if (text.startsWith(wanted)) return 3;
  const parts = wanted.split(' ');
  if (!parts.every((part) => text.includes(part))) return 0;
  return parts.every((part) => text.startsWith(part) || text.includes(` ${part}`)) ? 2 : 1;
}

/** Words in pieces: those that are of the query, and those between. */
export function matchesIn(words: string, query: string): ExcerptPiece[] {
  const letters = [...words];
  const folded = letters.map((letter) => (/\s/.test(letter) ? ' ' : fold(letter)));
  // Which letter each place of the folded text comes from.
  const letterAt = folded.flatMap((text, index) => [...text].map(() => index));
  const text = folded.join('');
  const matched = new Set<number>();
  for (const part of fold(query).split(' ').filter(Boolean)) {
    const inside = text.startsWith(part) ? 0 : text.indexOf(` ${part}`) + 1 || text.indexOf(part);
    for (let place = inside; inside >= 0 && place < inside + part.length; place++) matched.add(letterAt[place] ?? -1);
  }
  const pieces: ExcerptPiece[] = [];
  for (const [index, letter] of letters.entries()) {
    const last = pieces.at(-1);
    if (last && last.is_match === matched.has(index)) last.text += letter;
    else pieces.push({ text: letter, is_match: matched.has(index) });
  }
  return pieces;
}

/** Case, accents and spaces do not matter. */
function fold(text: string): string {
  return text.normalize('NFKD').replaceAll(/\p{M}/gu, '').toLowerCase().trim().replaceAll(/\s+/g, ' ');
}

export function paletteGroups(app: App, query: string): PaletteGroup[] {
  const words = strings.palette;
  if (query.trim() === '') {
    return ordered([
      group(words.recent, chatEntries(app, true), query, MOST_RECENT),
      group(words.personas, personaEntries(app), query, MOST_OTHERS),
      group(words.startingPoints, startingPointEntries(app), query, MOST_OTHERS),
      group(words.models, modelEntries(app), query, MOST_OTHERS),
      group(words.actions, commandEntries(app), query, commands.length),
    ]);
  }
  const groups = ordered([
    group(words.chats, chatEntries(app, false), query, MOST_CHATS),
    group(words.personas, personaEntries(app), query, MOST_OTHERS),
    group(words.startingPoints, startingPointEntries(app), query, MOST_OTHERS),
    group(words.models, [...modelEntries(app), ...downloadEntries(app)], query, MOST_OTHERS),
    group(words.actions, commandEntries(app), query, MOST_OTHERS),
    { name: words.messages, entries: messageEntries(app, query.trim()), match: MESSAGES_MATCH },
    // Behind the chats themselves, also where their titles match as well.
    { ...group(words.savedContext, savedEntries(app), query, MOST_SAVED), match: 0 },
  ]);
  return [...groups, { name: words.ask, entries: [askEntry(app, query.trim())] }];
}

interface Ranked extends PaletteGroup {
  /** How well its best entry matches. */
  match: number;
}

/** The best of some entries. */
function group(name: string, all: PaletteEntry[], query: string, most: number): Ranked {
  const matched = all
    .map((entry) => ({ entry, match: matchOf(entry.searched ?? entry.label, query) }))
    .filter(({ match }) => match > 0)
    .sort((a, b) => b.match - a.match);
  return { name, entries: matched.slice(0, most).map(({ entry }) => entry), match: matched[0]?.match ?? 0 };
}

/** The group with the best match first; of equal ones in the order in which they stand here. */
function ordered(groups: Ranked[]): PaletteGroup[] {
  return groups.filter(({ entries }) => entries.length > 0).sort((a, b) => b.match - a.match);
}

function chatEntries({ chat, navigation }: App, isOfList: boolean): PaletteEntry[] {
  return (isOfList ? chat.list.listed : chat.list.items.filter((row) => !isUnsent(row))).map((conversation) => {
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

/** A message of each chat that says what is looked for, and documents that have it in their name or their text. */
function messageEntries(app: App, query: string): PaletteEntry[] {
  const { chat, search } = app;
  const entries: PaletteEntry[] = [];
  for (const { conversation_id: id, message_id, excerpt, document, num_messages, created_at_ms } of search.found) {
    const conversation = chat.list.get(id);
    // One that was just deleted may still be among those that were found.
    if (!conversation) continue;
    const ago = strings.pieces.ago(created_at_ms, Date.now());
    entries.push({
      id: `message-${message_id}-${document?.document.id ?? ''}`,
      label: titleOf(conversation),
      excerpt: document === null ? fromMatch(withoutSignsIn(excerpt)) : documentExcerpt(document, excerpt, query),
      detail: num_messages > 1 ? `${strings.palette.moreMessages(num_messages - 1)} · ${ago}` : ago,
      keys: '',
      conversationId: id,
      run: () => {
        if (document === null) app.openMessage(id, message_id);
        else app.openDocument(id, message_id, document, wordsAt(excerpt));
      },
    });
  }
  return entries.slice(0, MOST_MESSAGES);
}

/** A document's name; before what it says, or with the words that are in it marked. */
function documentExcerpt(
  { document, at_utf16 }: FoundDocument,
  excerpt: ExcerptPiece[],
  query: string,
): ExcerptPiece[] {
  const plain = (text: string): ExcerptPiece => ({ text, is_match: false });
  if (at_utf16 === null) return [plain(strings.palette.document), ...matchesIn(document.name, query)];
  return [plain(`${shortened(document.name)}: `), ...fromMatch(excerpt)];
}

/** So that what it says is seen beside it. */
const shortened = (name: string) => (name.length > MOST_NAME ? `${name.slice(0, MOST_NAME - 1).trimEnd()}…` : name);

/** Begins a few words before the first that was found: a row has little room. */
export function fromMatch(excerpt: ExcerptPiece[]): ExcerptPiece[] {
  const first = excerpt.findIndex(({ is_match }) => is_match);
  if (first <= 0) return excerpt;
  const before = excerpt
    .slice(0, first)
    .map(({ text }) => text)
    .join('');
  if (before.length <= MOST_BEFORE) return excerpt;
  // Whole words, where there are such.
  const end = before.slice(-MOST_BEFORE);
  const text = `…${/\s(?=\S)/.test(end) ? end.slice(end.search(/\s(?=\S)/)).trimStart() : ''}`;
  return [{ text, is_match: false }, ...excerpt.slice(first)];
}

/** The words that stand at the place of an excerpt: the first that was found, and those that follow it. */
export function wordsAt(excerpt: ExcerptPiece[]): string[] {
  const words: string[] = [];
  for (const piece of excerpt) {
    if (piece.is_match) words.push(piece.text);
    else if (words.length > 0 && piece.text.trim() !== '') break;
  }
  return words;
}

/** A part of an answer as it is read: without the signs of Markdown, which may stand around words that were found. */
export function withoutSignsIn(excerpt: ExcerptPiece[]): ExcerptPiece[] {
  const text = excerpt.map((piece) => piece.text).join('');
  const isMatch = excerpt.flatMap((piece) => Array.from({ length: piece.text.length }, () => piece.is_match));
  const pieces: ExcerptPiece[] = [];
  let at = 0;
  const keep = (end: number) => {
    for (; at < end; at++) {
      const last = pieces.at(-1);
      const is_match = isMatch[at] ?? false;
      if (last?.is_match === is_match) last.text += text[at];
      else pieces.push({ text: text[at] ?? '', is_match });
    }
  };
  for (const sign of text.matchAll(SIGNS)) {
    keep(sign.index);
    at = sign.index + sign[0].length;
  }
  keep(text.length);
  return pieces;
}

/** The saved context of chats, by their titles. */
function savedEntries(app: App): PaletteEntry[] {
  const saved = app.chat.list.items.filter(({ cache }) => (cache?.cached_tokens ?? 0) > 0);
  return saved.map((conversation) => ({
    id: `saved-${conversation.id}`,
    label: strings.palette.savedContextOf(titleOf(conversation)),
    searched: titleOf(conversation),
    detail: strings.common.tokens(conversation.cache?.cached_tokens ?? 0),
    keys: '',
    conversationId: conversation.id,
    run: () => app.showSavedContext(conversation.id),
  }));
}

function personaEntries(app: App): PaletteEntry[] {
  return app.personas.items.map((persona) => ({
    id: `persona-${persona.id}`,
    label: strings.personas.startChatWith(persona.name),
    searched: `${persona.name} ${strings.personas.one}`,
    detail: persona.model === null ? '' : shortModelName(persona.model),
    keys: '',
    run: () => app.newChatAs(persona),
  }));
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

function modelEntries({ chat, chatModel, models, navigation, status }: App): PaletteEntry[] {
  return models.loadable.map(({ name, path, bytes }) => ({
    id: `model-${path}`,
    label: strings.palette.use(shortModelName(name)),
    searched: `${strings.palette.use(shortModelName(name))} ${name}`,
    detail: status.model === name ? strings.palette.loaded : strings.common.bytes(bytes),
    keys: '',
    run: () => {
      // While a chat is open it is chosen for that.
      if (navigation.page === 'chat') void chatModel.choose(name);
      else if (status.model !== name) void models.load(name);
      chat.numFocusRequests++;
    },
  }));
}

/** Suggested models that are not here. */
function downloadEntries(app: App): PaletteEntry[] {
  const { discover, downloads, models } = app;
  const wanted = (discover.recommended ?? []).filter(({ name }) => !models.get(name) && !downloads.get(name));
  return wanted.map(({ name, download_bytes }) => ({
    id: `download-${name}`,
    label: strings.palette.download(shortModelName(name)),
    searched: `${strings.palette.download(shortModelName(name))} ${name}`,
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
