// Saved context: of a chat and of all chats, starting points, stored pieces, imports and exports.
import { f, tokens } from './formats';

/** What is in memory is usually on disk as well: the words must not sound like the only copy. */
const tiers = { memory: 'ready in memory', disk: 'on disk' };

/** Saved context: of a chat, and all of it. */
export const saved = {
  states: { saved: 'Saved', partly: 'Partly saved', none: 'Not saved' },
  tiers,
  /** The row of a chat in the list. */
  amount: (state: string, count: number, bytes: number) => `${state}: ${tokens(count)}, ${f.bytes(bytes)}`,
  forOtherModel: (loaded: string, model: string) => `Not saved for ${loaded}, only for ${model}`,
  forMissing: (model: string) => `Only saved for ${model}, which is not here`,
  forOtherVersion: (model: string) => `Not saved for this version of ${model}`,
  pinned: (state: string) => `${state}, pinned`,

  title: 'Saved context',
  numReady: (count: number) => `${f.plural(count, 'chat is', 'chats are')} ready to continue`,
  noneReady: 'No chat is ready to continue',
  chats: 'Chats',
  moreChats: (count: number) => `And ${f.plural(count, 'more chat', 'more chats')}.`,
  loading: 'Loading saved context…',
  memory: 'Memory',
  disk: 'Disk',
  usage: (bytes: number, limit: number) => `${f.bytes(bytes)} of ${f.bytes(limit)}`,
  usageOver: (bytes: number, limit: number) => `${f.bytes(bytes)}, over the limit of ${f.bytes(limit)}`,
  overLimit: 'Pinned chats, starting points and what is in use are never deleted, even above a limit.',
  hitRate: (share: number, cached: number, total: number) =>
    `Since Cairn started, ${f.share(share)} of the prompts had been read before (${f.count(cached)} of ${tokens(total)}).`,
  noPrompts: 'No prompt has been read since Cairn started.',
  notWritten: (problem: string) => `Some context could not be saved to disk. ${problem}`,
  timeSaved: (milliseconds: number, since: number | null) =>
    since === null
      ? `${f.estimate(milliseconds)} of reading saved in all`
      : `${f.estimate(milliseconds)} of reading saved since ${f.date(since)}, deleted chats included.`,
  timeSavedHere: (milliseconds: number) => `${f.estimate(milliseconds)} saved so far`,
  changeLimits: 'Change limits…',
  deleteAllQuestion:
    'This deletes the saved context of every chat that is not pinned. Starting points and all messages stay. A chat is read again once when you continue it.',

  panel: 'Saved context of this chat',
  ready: 'Ready to continue',
  full: 'Saved, but the context is full',
  contextFull: 'The context is full',
  withDocuments: 'The attached documents will be read with your question.',
  reading: (share: number) => `Reading, ${f.share(share)} done`,
  readingHelp: 'What the model has read stays saved.',
  readyOnceLoaded: (model: string) => `Ready to continue once ${model} is loaded`,
  untilClosed: 'Only until Cairn is closed: the disk limit for saved context is 0.',
  readAgainOnce: (estimateMs: number | null) =>
    estimateMs === null ? 'Will be read again once' : `Will be read again once (about ${f.estimate(estimateMs)})`,
  restReadAgainOnce: 'Partly saved: the rest will be read again once',
  restReadAgainOnceAbout: (estimateMs: number) =>
    `Partly saved: the rest will be read again once (about ${f.estimate(estimateMs)})`,
  chooseToContinue: (answering: string, model: string) =>
    `It is saved for ${model}, and ${answering} answers. Choose ${model} to continue without reading again.`,
  notHere: (model: string) => `It is saved for ${model}, which is not here.`,
  notHereInstead: (model: string, answering: string) =>
    `It is saved for ${model}, which is not here; ${answering} will read it again.`,
  modelChanged: (model: string) => `The files of ${model} have changed since it read this chat.`,
  because: (cause: string) => `The reason: ${cause}.`,
  missing: (what: string) => `Missing ${what}`,
  noneHelp: 'Cairn saves what the model has read after each answer, so that the chat continues without reading again.',
  details: 'Details',
  length: 'Length',
  size: 'Size',
  sizeShared: (bytes: number, own: number) => `${f.bytes(bytes)}, ${f.bytes(own)} of it only for this chat`,
  location: 'Stored',
  model: 'Model',
  sharedWith: 'Shared with',
  pin: 'Pin',
  unpin: 'Unpin',
  pinTitle: 'Never delete it to make room',
  unpinTitle: 'Let Cairn delete it when room is short',
  pinnedNote: 'Pinned: it is never deleted to make room.',
  export: 'Export saved context…',
  exporting: (name: string) => `Exporting the saved context of “${name}”…`,
  exported: (name: string) => `Exported the saved context of “${name}”.`,
  delete: 'Delete saved context…',
  nothingToDelete: (names: string[]) =>
    `Nothing to delete: every part of it is used elsewhere too${names.length > 0 ? ` (${f.names(names)})` : ''}.`,
  deleteQuestion:
    'This deletes the saved context of this chat. Its messages stay and are read again once when you continue.',
  deleteQuestionShared:
    'This deletes the saved context that only this chat uses. Its messages stay and are read again once when you continue.',
  deleted: (title: string) => `Deleted the saved context of “${title}”. Its messages stay.`,
  deletedShared: (title: string) => `Deleted the saved context that only “${title}” used. Its messages stay.`,
};

export const startingPoints = {
  title: 'Starting points',
  label: 'Starting point',
  actions: (name: string) => `Actions for ${name}`,
  empty:
    'None yet. Open the saved context of a chat and choose “Save as starting point…”, or import a prompt cache. New chats can begin there without reading it again.',
  start: 'Start a chat',
  startFrom: (name: string) => `Start a chat from ${name}`,
  rename: (name: string) => `Rename starting point ${name}`,
  export: (name: string) => `Export starting point ${name}`,
  exportTitle: 'Export…',
  exporting: (name: string) => `Exporting “${name}”…`,
  exported: (name: string) => `Exported “${name}”.`,
  delete: (name: string) => `Delete starting point ${name}`,
  deleted: (name: string) => `Deleted “${name}”.`,
  importedFrom: (file: string) => `Imported from ${file}`,
  importedTitle: 'Imported from a file',
  partly: 'partly saved, the rest will be read again once',
  none: 'not saved, will be read again once',
  ready: 'ready',
  willBeRead: 'will be read again once',
  forModel: (model: string) => `for ${model}`,
  forMissing: (model: string) => `for ${model}, which is not here`,
  numChats: (count: number) => f.plural(count, 'chat', 'chats'),
  lastUsed: (milliseconds: number, now: number) => `Last used ${f.ago(milliseconds, now) ?? 'just now'}`,
  readByOther: (model: string) => `${model} has read this: choose that model to continue.`,
  choose: (model: string) => `Answer with ${model}`,
  begins: 'Begins: ',
  ends: 'Ends: ',

  save: 'Save as starting point…',
  saveTitle: 'Save as starting point',
  saveNote: (count: number | null) =>
    `New chats can begin here without reading ${count === null ? 'it' : tokens(count)} again. A starting point is never deleted to make room.`,
  savedAs: (name: string) => `Saved as “${name}”. New chats can start from it.`,
};

/** The tree of stored pieces. */
export const pieces = {
  title: 'Stored pieces',
  note: 'Each row continues the one above it that is less indented. What several chats begin with is stored once.',
  empty: 'Nothing is saved yet. Cairn saves context with the first answer.',
  loading: 'Loading…',
  more: (count: number) => `And ${f.count(count)} more.`,
  columns: { text: 'Text', tokens: 'Tokens', size: 'Size', used: 'Last used' },
  readBy: (model: string) => `Read by ${model}`,
  positions: (first: number, last: number) => (first === last ? f.count(first) : `${f.count(first)}–${f.count(last)}`),
  ago: (milliseconds: number, now: number) => f.ago(milliseconds, now) ?? 'just now',
  used: (times: number, ago: string) => `used ${times === 1 ? 'once' : f.plural(times, 'time', 'times')}, last ${ago}`,
  pinned: 'pinned',
  tokens: 'tokens ',
  lastPieceOf: 'Last piece of:',
  startingPoint: '(starting point)',
  facts: (positions: string, facts: string[]) => [`Tokens ${positions}`, ...facts].join(' · '),
  stored: (bytes: number, tier: keyof typeof tiers) => `${f.bytes(bytes)} ${tiers[tier]}`,
};

export const imports = {
  button: 'Import…',
  title: 'Import a prompt cache',
  refused: 'This file cannot be imported',
  reading: (file: string) => `Reading ${file}…`,
  readingLabel: 'Reading',
  importing: 'Importing…',
  importingLabel: 'Importing',
  verifying: 'Verifying and importing…',
  verify: 'Verify (reads it again)',
  verifyNote:
    'Checks that the file really is what this model computes. Without it, a damaged or forged file goes unnoticed.',
  hide: 'Hide',
  import: 'Import',
  imported: (name: string) => `Imported “${name}”.`,
  failed: (name: string, problem: string) => `“${name}” was not imported. ${problem}`,
  show: 'Show',
  drop: 'Drop documents to attach them, or chats, a prompt cache or a model to import it',
  wrongEnding: (file: string) => `“${file}” isn’t a Cairn prompt cache. Choose a file whose name ends in .safetensors.`,
  wrongBeginning: (file: string) => `“${file}” isn’t a Cairn prompt cache, or it is damaged.`,
  unreadable: (file: string) => `“${file}” could not be read. Check that it is still where it was.`,
  exportName: 'prompt cache',
  file: 'File',
  fileTitle: 'Title',
  model: 'Model',
  contains: 'Contains',
  aChat: 'a chat',
  aBeginning: 'the beginning of a chat',
  length: 'Length',
  size: 'Size',
  madeBy: 'Made by',
  madeOn: 'Made on',
  date: f.date,
};

export const exports = {
  title: (name: string) => `Export “${name}”`,
  /** Beside the export of its texts. */
  titleOfChat: (name: string) => `Export saved context of “${name}”`,
  help: 'The file contains the text that the model has read. Cairn can import it on any computer with the same model, and mlx-lm 0.32 or newer can continue from it.',
  forOlder: 'For mlx-lm 0.31 or older',
  forOlderNote: 'mlx-lm 0.32 and newer cannot read such a file. Cairn reads both kinds.',
  export: 'Export',
};
