// Every word that the window shows, by key. Sentences with values in them are functions.
import type { Settings, Status } from '../platform/wire';
import {
  formatAgo,
  formatBytes,
  formatCount,
  formatDate,
  formatEstimate,
  formatMilliseconds,
  formatNames,
  formatRate,
  formatShare,
  plural,
} from './format';

const tokens = (count: number) => plural(count, 'token', 'tokens');
const readAgainOnce = (estimateMs: number | null) =>
  estimateMs === null ? 'Will be read again once' : `Will be read again once (about ${formatEstimate(estimateMs)})`;

const common = {
  appName: 'Cairn',
  bytes: formatBytes,
  cancel: 'Cancel',
  close: 'Close',
  copied: 'Copied',
  copy: 'Copy',
  copyFailed: 'Could not copy',
  delete: 'Delete',
  dismiss: 'Dismiss',
  imported: 'imported',
  name: 'Name',
  notifications: 'Notifications',
  rename: 'Rename',
  save: 'Save',
  tokens,
  tryAgain: 'Try again',
  undo: 'Undo',
};

const connection = {
  expired: 'This link has expired',
  expiredHelp:
    'Open the newest one from the menu bar. If you started Cairn in a terminal, open the address that it printed there.',
  lost: 'Lost the connection to Cairn. Reconnecting…',
  noAnswer: 'Cairn does not answer. Check that it is still running.',
  opening: 'Opening…',
  startFailed: 'Cairn could not start',
  status: (status: number) => `Cairn answered with status ${status}. Try again.`,
  truncatedReply: 'Cairn’s answer was incomplete. Try again.',
  truncatedFile: 'The file arrived incomplete. Export it again.',
  unexpectedReply: 'Cairn sent an answer that this window does not understand. Restart Cairn and try again.',
  waiting: 'Waiting for Cairn to answer…',
};

const welcome = {
  label: 'Welcome',
  needsModel: 'Cairn needs a model',
  importHelp:
    'Import one with `cairn models import`, from a GGUF file or a model folder. Models that other MLX programs have downloaded are found too.',
  noModels: 'There is no model on this computer yet.',
  noneLoadable: 'None of the models on this computer can be loaded.',
  showModels: 'Show models',
  title: 'A conversation keeps its place',
  promise:
    'Cairn saves what the model has read. Come back whenever you like, and the chat continues without reading it all again.',
};

const chats = {
  ages: { today: 'Today', yesterday: 'Yesterday', lastWeek: 'Last 7 days', earlier: 'Earlier' },
  answering: ', answering',
  deleteChat: (title: string) => `Delete ${title}`,
  deleted: (title: string) => `Deleted “${title}”.`,
  empty: 'No chats yet',
  label: 'Chats',
  new: 'New chat',
  newPrivate: 'New private chat',
  newPrivateTitle: 'Nothing of it is saved. It is gone when Cairn closes.',
  newTitle: (key: string) => `New chat (${key}N)`,
  renameChat: (title: string) => `Rename ${title}`,
  renameTitle: 'Rename (F2)',
  savedContextTitle: 'Starting points and the saved context of all chats',
  settingsTitle: (key: string) => `Settings (${key},)`,
  show: 'Show chats',
  titleField: 'Title',
  untitled: 'New chat',
};

/** A chat that exists only in memory. */
const privateChat = {
  label: 'Private',
  summary: 'Private: nothing of this chat is saved.',
  panel: 'Private chat',
  rereadNote:
    'Private: nothing of this chat is saved. Each message is read again, and the chat is gone when Cairn closes.',
  title: 'This chat is private',
  promise: 'Nothing of it is saved: no message, and nothing that the model reads. It is gone when Cairn closes.',
};

const chat = {
  answer: 'Answer',
  answerEnded: 'The answer ended early.',
  answerFinished: (answer: string) => `Answer finished. ${answer}`,
  chooseModel: 'Choose a model',
  chooseModelToStart: 'Choose a model to start',
  copyAnswer: 'Copy answer',
  copyMessage: 'Copy message',
  jumpToEnd: 'Jump to the end',
  loadFailed: (model: string, reason: string) => `${model} could not be loaded: ${reason}`,
  message: 'Message',
  messages: 'Messages',
  regenerate: 'Regenerate',
  send: 'Send',
  sendTitle: 'Send (Enter)',
  showEarlier: (count: number) => `Show ${plural(count, 'earlier message', 'earlier messages')}`,
  stop: 'Stop',
  stopTitle: 'Stop (Esc)',
  write: 'Write a message',
  writing: 'Writing',
  you: 'You',
};

/** How an answer ended before its end, and what can be done about it. */
const endings = {
  failed: 'This answer could not be written.',
  failedAdvice: 'Regenerate to try again.',
  interrupted: 'Cairn was closed while it wrote this answer.',
  interruptedAdvice: 'Regenerate to have it written again.',
  length: (count: number) => `This answer reached the limit of ${tokens(count)}.`,
  lengthAdvice: 'Ask the model to continue, or raise the maximum answer length in Settings.',
  stopped: 'You stopped this answer.',
  stoppedAdvice: 'Regenerate to have it written again.',
};

const reading = {
  alreadySaved: (count: number) => `${formatCount(count)} already saved`,
  label: 'Reading',
  loadingModel: 'Loading the model…',
  preparing: 'Getting ready…',
  progress: (processed: number, total: number) => `Reading ${formatCount(processed)} of ${tokens(total)}`,
};

/** The line under an answer, and the figures behind it. */
const stats = {
  answer: 'Answer',
  answerRate: (count: number, perSecond: number) => `${tokens(count)} at ${formatRate(perSecond)} tok/s`,
  appMemory: 'App memory',
  continued: 'Continued',
  continuedSaving: (milliseconds: number) => `Continued, ${formatEstimate(milliseconds)} saved`,
  firstToken: 'First token',
  firstTokenAfter: (milliseconds: number) => `after ${formatMilliseconds(milliseconds)}`,
  firstTokenAfterWait: (milliseconds: number, waitMs: number) =>
    `after ${formatMilliseconds(milliseconds)}, ${formatMilliseconds(waitMs)} of it waiting for other answers`,
  memory: (now: number, most: number) => `${formatBytes(now)} now, ${formatBytes(most)} at most`,
  mlxMemory: 'MLX memory',
  model: 'Model',
  prompt: 'Prompt',
  promptRead: (read: number, saved: number) => `${tokens(read)} read, ${formatCount(saved)} from saved context`,
  read: (count: number) => `Read ${tokens(count)}`,
  readAgain: (count: string, reason: string) =>
    `Read ${count === '1' ? '1 token' : `${count} tokens`} again: ${reason}`,
  readingSpeed: 'Reading speed',
  rate: (perSecond: number) => `${formatRate(perSecond)} tok/s`,
  stoppedBeforeFirst: 'stopped before its first token',
};

const systemPrompt = {
  example: 'For example: Answer in short sentences.',
  fixed: 'It comes from the starting point and cannot be changed here.',
  note: 'The model reads this before everything else. If you change it, the chat is read again once.',
  title: 'System prompt',
  titleSet: 'System prompt (set)',
};

const models = {
  choose: 'Choose a model',
  current: (name: string) => `Model: ${name}`,
  empty: 'None yet. Import one with `cairn models import`.',
  label: 'Models',
  load: 'Load ',
  loaded: 'Loaded: ',
  incomplete: (problem: string) => `${problem}: download or import it again`,
  loading: 'loading…',
  onThisComputer: 'Models on this computer',
  refresh: 'Refresh',
  unload: 'Unload',
  unloadModel: (name: string) => `Unload ${name}`,
};

/** What is in memory is usually on disk as well: the words must not sound like the only copy. */
const tiers = { memory: 'ready in memory', disk: 'on disk' };

/** Saved context: of a chat, and all of it. */
const saved = {
  states: { saved: 'Saved', partly: 'Partly saved', none: 'Not saved' },
  tiers,
  /** The row of a chat in the list. */
  amount: (state: string, count: number, bytes: number) => `${state}: ${tokens(count)}, ${formatBytes(bytes)}`,
  forOtherModel: (loaded: string, model: string) => `Not saved for ${loaded}, only for ${model}`,
  forOtherVersion: (model: string) => `Not saved for this version of ${model}`,
  pinned: (state: string) => `${state}, pinned`,

  title: 'Saved context',
  back: 'Back to the chat',
  backTitle: 'Back (Esc)',
  loading: 'Loading saved context…',
  storage: 'Storage',
  memory: 'Memory',
  disk: 'Disk',
  usage: (bytes: number, limit: number) => `${formatBytes(bytes)} of ${formatBytes(limit)}`,
  usageOver: (bytes: number, limit: number) => `${formatBytes(bytes)}, over the limit of ${formatBytes(limit)}`,
  overLimit: 'Pinned chats, starting points and what is in use are never deleted, even above a limit.',
  hitRate: (share: number, cached: number, total: number) =>
    `Since Cairn started, ${formatShare(share)} of the prompts came from saved context (${formatCount(cached)} of ${tokens(total)}).`,
  noPrompts: 'No prompt has been read since Cairn started.',
  notWritten: (problem: string) => `Some context could not be saved to disk. ${problem}`,
  changeLimits: 'Change limits…',
  deleteAll: 'Delete all but pinned and starting points…',
  deleteAllQuestion:
    'This deletes the saved context of every chat that is not pinned. Starting points and all messages stay. A chat is read again once when you continue it.',

  panel: 'Saved context of this chat',
  ready: 'Ready to continue',
  readyOnceLoaded: (model: string) => `Ready to continue once ${model} is loaded`,
  readAgainOnce,
  restReadAgainOnce: 'Partly saved: the rest will be read again once',
  restReadAgainOnceAbout: (estimateMs: number) =>
    `Partly saved: the rest will be read again once (about ${formatEstimate(estimateMs)})`,
  loadToContinue: (loaded: string, model: string) =>
    `It is saved for ${model}, and ${loaded} is loaded. Load ${model} to continue without reading again.`,
  modelChanged: (model: string) => `The files of ${model} have changed since it read this chat.`,
  missing: (what: string) => `Missing ${what}`,
  noneHelp: 'Cairn saves what the model has read after each answer, so that the chat continues without reading again.',
  length: 'Length',
  size: 'Size',
  sizeShared: (bytes: number, own: number) => `${formatBytes(bytes)}, ${formatBytes(own)} of it only for this chat`,
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
    `Nothing to delete: all of it is shared with ${names.length > 0 ? formatNames(names) : 'other chats'}.`,
  deleteQuestion:
    'This deletes the saved context of this chat. Its messages stay and are read again once when you continue.',
  deleteQuestionShared:
    'This deletes the saved context that only this chat uses. Its messages stay and are read again once when you continue.',
  deleted: (title: string) => `Deleted the saved context of “${title}”. Its messages stay.`,
  deletedShared: (title: string) => `Deleted the saved context that only “${title}” used. Its messages stay.`,
};

const startingPoints = {
  title: 'Starting points',
  label: 'Starting point',
  empty:
    'None yet. Open the saved context of a chat and choose “Save as starting point…”, or import a prompt cache. New chats can begin there without reading it again.',
  menu: 'Start from…',
  menuTitle: 'Start a chat from a starting point',
  menuHeading: 'Start a chat from',
  from: 'Start from ',
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
  numChats: (count: number) => plural(count, 'chat', 'chats'),
  lastUsed: (milliseconds: number, now: number) => `Last used ${formatAgo(milliseconds, now) ?? 'just now'}`,
  readByOther: (model: string) => `${model} has read this: choose that model to continue.`,
  begins: 'Begins: ',
  ends: 'Ends: ',

  save: 'Save as starting point…',
  saveTitle: 'Save as starting point',
  saveNote: (count: number | null) =>
    `New chats can begin here without reading ${count === null ? 'it' : tokens(count)} again. A starting point is never deleted to make room.`,
  savedAs: (name: string) => `Saved as “${name}”. New chats can start from it.`,
};

/** The tree of stored pieces. */
const pieces = {
  details: 'Details',
  title: 'Stored pieces',
  note: 'Each row continues the one above it that is less indented. What several chats begin with is stored once.',
  empty: 'Nothing is saved yet. Cairn saves context with the first answer.',
  loading: 'Loading…',
  more: (count: number) => `And ${formatCount(count)} more.`,
  kinds: { system: 'System', user: 'You', assistant: 'Answer' },
  readBy: (model: string) => `Read by ${model}`,
  positions: (first: number, last: number) =>
    first === last ? formatCount(first) : `${formatCount(first)}–${formatCount(last)}`,
  ago: (milliseconds: number, now: number) => formatAgo(milliseconds, now) ?? 'just now',
  used: (times: number, ago: string) => `used ${times === 1 ? 'once' : plural(times, 'time', 'times')}, last ${ago}`,
  pinned: 'pinned',
  lastPieceOf: 'Last piece of:',
  lastPieceOfCount: (count: number) => `last piece of ${formatCount(count)}`,
  startingPoint: '(starting point)',
  row: (kind: string, positions: string, words: string, facts: string[]) =>
    `${kind}, tokens ${positions}: ${words}. ${facts.join(', ')}`,
  facts: (positions: string, facts: string[]) => [`Tokens ${positions}`, ...facts].join(' · '),
  stored: (bytes: number, tier: keyof typeof tiers) => `${formatBytes(bytes)} ${tiers[tier]}`,
};

const imports = {
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
  drop: 'Drop a prompt cache here to import it',
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
  date: formatDate,
};

const exports = {
  title: (name: string) => `Export “${name}”`,
  help: 'The file contains the text that the model has read. Cairn can import it on any computer with the same model, and mlx-lm 0.32 or newer can continue from it.',
  forOlder: 'For mlx-lm 0.31 or older',
  forOlderNote: 'mlx-lm 0.32 and newer cannot read such a file. Cairn reads both kinds.',
  export: 'Export',
};

/** The words of one setting. */
export interface SettingText {
  label: string;
  /** One sentence: what it does, or what a special value means. */
  note?: string;
  /** What depends on what the engine does now. */
  statusNote?: (status: Status | null) => string;
  unit?: string;
  placeholder?: string;
  /** Of a setting with few values: their names. */
  choices?: Record<string, string>;
}

/** One entry for each row of the table of settings. */
const settingRows: Record<keyof Settings, SettingText> = {
  appearance: { label: 'Appearance', choices: { system: 'System', light: 'Light', dark: 'Dark' } },
  default_model: { label: 'Default model', note: 'Loaded when Cairn starts.' },
  temperature: { label: 'Temperature', note: '0 always takes the likeliest token.' },
  max_tokens: { label: 'Maximum answer length', unit: 'tokens' },
  top_p: { label: 'Top-p', note: 'Leaves out the least likely tokens. 0 and 1 turn it off.' },
  top_k: { label: 'Top-k', note: 'Keeps so many of the likeliest tokens; 0 turns it off.' },
  min_p: { label: 'Min-p', note: 'Drops tokens below this share of the likeliest one; 0 turns it off.' },
  repetition_penalty: {
    label: 'Repetition penalty',
    note: 'Above 1 the last words are less likely to come again; 0 and 1 turn it off.',
  },
  seed: { label: 'Seed', note: 'A fixed seed makes answers repeatable.', placeholder: 'Random' },
  cache_budget_bytes: {
    label: 'Disk limit',
    unit: 'GB',
    note: 'For saved context; 0 saves only pinned chats and starting points.',
    statusNote: (status) => `Now ${formatBytes(status?.cache_disk_bytes ?? 0)}.`,
  },
  cache_ram_budget_bytes: {
    label: 'Memory limit',
    unit: 'GB',
    note: 'For saved context; what is in memory continues without a read from disk.',
    statusNote: (status) => `Now ${formatBytes(status?.cache_ram_bytes ?? 0)}.`,
  },
};

const settings = {
  title: 'Settings',
  ofChat: 'Settings of this chat',
  sections: {
    general: 'General',
    models: 'Models',
    generation: 'Generation',
    advanced: 'Advanced',
    storage: 'Storage',
  },
  help: 'Help',
  rows: settingRows,
  rereadsNote: 'After a change, chats are read again once.',
  targets: 'Settings for',
  targetNames: { app: 'All chats', model: 'This model', chat: 'This chat' },
  forAllNote: 'What a model or a chat sets for itself comes first.',
  forModelNote: (name: string) => `What ${name} answers. What a chat sets for itself comes first.`,
  forChatNote: (title: string) => `Only “${title}”.`,
  /** Where a value was set. */
  sources: {
    default: 'Default',
    generation_config: 'From the model',
    app: 'Set for all chats',
    model: 'Set for this model',
    persona: 'From the persona',
    chat: 'From this chat',
    request: 'From the request',
  },
  reset: 'Reset',
  resetOf: (label: string) => `Reset ${label}`,
  lastUsed: 'Last used',
  notFound: (name: string) => `${name} (not found)`,
  diagnostics: 'Diagnostics',
  diagnosticsNote: 'For reporting a problem. Without texts of chats and without secrets.',
  copyDiagnostics: 'Copy diagnostics',
  deletesSaved: (bytes: number) =>
    `This deletes about ${formatBytes(bytes)} of saved context. Pinned chats and starting points stay.`,
  enterNumber: (least: string, most: string) => `Enter a number from ${least} to ${most}.`,
  enterWhole: (least: string, most: string) => `Enter a whole number from ${least} to ${most}.`,
};

const status = {
  label: 'Status',
  notConnected: 'Not connected',
  empty: 'No model loaded',
  loading: 'Loading the model',
  ready: 'Ready',
  writing: 'Writing',
  failed: 'Model not loaded',
  rateTitle: 'Writing speed',
  memory: 'Memory',
  memoryTitle: (peak: string, mlx: string, mlxPeak: string, reusable: string) =>
    `The whole app, ${peak} at most. MLX uses ${mlx}, ${mlxPeak} at most, and ${reusable} more is free for reuse.`,
  saved: 'Saved context',
  savedTitle: (memory: string) => `Size on disk. In memory: ${memory}.`,
  deviceTitle: 'Device',
};

/** Text that a model wrote, and text that it read. */
const content = {
  code: 'Code',
  codeIn: (language: string) => `Code, ${language}`,
  copyCode: 'Copy code',
  imageNotLoaded: 'Image, not loaded: ',
  imageTitle: (address: string) => `This image is not loaded: ${address}`,
  linkNotOpened: (target: string) => `Not opened: ${target}`,
  plainText: 'text',
  table: 'Table',
  /** The speaker of the turn that a special token opens. */
  speakers: { system: 'System:', user: 'You:', assistant: 'Answer:', tool: 'Tool:' },
};

export const en = {
  common,
  connection,
  welcome,
  chats,
  privateChat,
  chat,
  endings,
  reading,
  stats,
  systemPrompt,
  models,
  saved,
  startingPoints,
  pieces,
  imports,
  exports,
  settings,
  status,
  content,
};
