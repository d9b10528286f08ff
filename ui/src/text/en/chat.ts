// Chats: the list, the messages, the answers, and what stands in a chat without any.
import { f, machine, tokens } from './formats';

export const welcome = {
  label: 'Welcome',
  noModels: `There is no model on ${machine} yet.`,
  noneLoadable: `None of the models on ${machine} can be loaded.`,
  showModels: 'Show models',
  title: 'A conversation keeps its place',
  promise:
    'Cairn saves what the model has read. Come back whenever you like, and the chat continues without reading it all again.',
  try: 'Try one of these',
  examples: [
    'Explain how a cairn is built, in five steps',
    'Write a short letter that asks for a quote from two roofers',
    'Compare SQLite and PostgreSQL for a small team, as a table',
  ],
};

const several = (count: number) => f.plural(count, 'chat', 'chats');
/** A chat by its title, or several by their number. */
const called = (what: string | number) => (typeof what === 'number' ? several(what) : f.quote(what));

export const chats = {
  ages: { today: 'Today', yesterday: 'Yesterday', lastWeek: 'Last 7 days' },
  month: f.month,
  answering: ', answering',
  branch: 'Branch',
  actions: (title: string) => `Actions for ${title}`,
  several,
  deleted: (what: string | number) => `Deleted ${called(what)}.`,
  deletedElsewhere: (title: string) => `${f.quote(title)} was deleted in another window.`,
  archive: 'Archive',
  archived: (what: string | number) => `Archived ${called(what)}.`,
  archiveTitle: (count: number) => `Archive (${f.count(count)})`,
  unarchive: 'Bring back from the archive',
  unarchived: (what: string | number) => `Brought ${called(what)} back.`,
  export: 'Export chat…',
  moveTo: (name: string) => `Move to ${name}`,
  moveToNew: 'Move to a new folder…',
  moveOut: 'Take out of the folder',
  moved: (what: string | number) => `Moved ${called(what)}.`,
  pin: 'Pin',
  unpin: 'Unpin',
  pinned: 'Pinned',
  empty: 'No chats yet',
  label: 'Chats',
  new: 'New chat',
  titleField: 'Title',
  untitled: 'New chat',
};

/** What is done with several chats that are selected in the list. */
export const selectedChats = {
  archive: (count: number) => `Archive ${f.count(count)} chats`,
  count: (count: number) => (count === 0 ? 'No chats selected' : `${several(count)} selected`),
  delete: (count: number) => `Delete ${f.count(count)} chats`,
  export: (count: number) => `Export ${f.count(count)} chats…`,
  mark: 'Selected',
  moveOut: (count: number) => `Take ${f.count(count)} chats out of their folders`,
  moveTo: (count: number, name: string) => `Move ${f.count(count)} chats to ${name}`,
  moveToNew: (count: number) => `Move ${f.count(count)} chats to a new folder…`,
  unarchive: (count: number) => `Bring ${f.count(count)} chats back from the archive`,
};

/** Folders of chats. */
export const folders = {
  aChatIn: (name: string) => `A chat in “${name}”`,
  actions: (name: string) => `Actions for the folder ${name}`,
  addFiles: 'Add files…',
  anyModel: 'The one that is loaded',
  beginning: 'Files of the folder',
  beginsWith: (name: string) => `Begins with the files of “${name}”`,
  begunWith: 'Begins with files of its folder',
  create: 'Create',
  delete: 'Delete folder',
  deleted: (name: string) => `Deleted the folder “${name}”. Its chats are in the list.`,
  edit: 'Edit folder…',
  editTitle: 'Edit folder',
  empty: 'No chats in it yet',
  files: 'Files',
  filesNote:
    'New chats in the folder begin with these files, which are read once for all of them. A chat that has begun keeps the files it began with.',
  from: (name: string) => `From the folder “${name}”`,
  label: (name: string, count: number) => `Folder ${name}, ${f.plural(count, 'chat', 'chats')}`,
  model: 'Model',
  newChat: 'New chat in this folder',
  newChatIn: (name: string) => `New chat in ${name}`,
  newTitle: 'New folder',
  read: (count: number) => `Read (${tokens(count)}). New chats continue from here.`,
  title: 'Folders',
  unread: 'Not read yet. The first chat in the folder reads them for all others.',
  withQuestion: 'They are read with the first question, once for all chats of the folder.',
  note: 'Chats that you begin in the folder start with this system prompt, which is then read once for all of them. Chats that you move into it keep theirs.',
};

/** Chats as files. */
export const chatFiles = {
  all: 'All chats',
  export: 'Export',
  exported: (file: string) => `Exported to ${file}.`,
  fileName: 'chats',
  form: 'Form of the file',
  formats: { json: 'Cairn (JSON)', markdown: 'Markdown', openai: 'Messages (JSONL)' },
  formatNotes: {
    json: 'All versions and branches. Cairn can import it again.',
    markdown: 'To be read: the branch on screen, without reasoning.',
    openai: 'For other programs: one line for each chat, as OpenAI’s API takes messages.',
  },
  extended: (chats: number, messages: number) =>
    `${f.plural(messages, 'new message', 'new messages')} in ${f.plural(chats, 'chat that was', 'chats that were')} here already.`,
  here: (count: number): string => (count === 1 ? 'One was here already.' : `${f.count(count)} were here already.`),
  imported: (count: number): string =>
    count === 0 ? 'No new chats.' : `Imported ${f.plural(count, 'chat', 'chats')}.`,
  importing: (file: string) => `Importing ${file}…`,
  kept: (count: number) =>
    `${f.plural(count, 'imported chat stays', 'imported chats stay')}: something was written since.`,
  none: 'There are no chats in this file.',
  note: 'The file has texts only. What the model has read is exported as saved context.',
  open: 'Open',
  refused: (count: number, title: string, number: number, why: string) =>
    `${f.plural(count, 'chat', 'chats')} could not be imported. ${title === '' ? `Number ${f.count(number)} in the file` : `“${title}”`}: ${why}`,
  takeBack: (count: number) => `Delete ${f.plural(count, 'new chat', 'new chats')}`,
  title: (name: string) => `Export “${name}”`,
};

/** A chat that exists only in memory. */
export const privateChat = {
  label: 'Private',
  summary: 'Private: nothing of this chat is saved.',
  rereadNote:
    'Private: nothing of this chat is saved. Each message is read again, and the chat is gone when Cairn closes.',
  gone: 'The private chat is gone: Cairn was closed meanwhile.',
  title: 'This chat is private',
  promise: 'Nothing of it is saved: no message, and nothing that the model reads. It is gone when Cairn closes.',
};

export const chat = {
  answer: 'Answer',
  answerBegun: 'The answer is being written.',
  answerFinished: (answer: string) => `Answer finished. ${answer}`,
  chooseModel: 'Choose a model',
  chooseModelToStart: 'Choose a model to start',
  modelSetAside: (name: string) => `${name} is set aside`,
  writeOnceReady: 'You can write once the model is here',
  copyAnswer: 'Copy answer',
  foldAnswer: 'Show less of this answer',
  unfoldAnswer: 'Show all of this answer',
  copyMessage: 'Copy message',
  jumpToEnd: 'Jump to the end',
  loadFailed: (model: string, reason: string) => `${model} could not be loaded: ${reason}`,
  message: 'Message',
  messages: 'Messages',
  regenerate: 'Regenerate',
  send: 'Send',
  sendTitle: 'Send (Enter)',
  stop: 'Stop',
  stopTitle: 'Stop (Esc)',
  showInspector: 'Show the inspector',
  hideInspector: 'Hide the inspector',
  inspector: 'This chat',
  write: 'Write a message',
  writeNext: 'Write the next message',
  writing: 'Writing',
  you: 'You',
};

/** What can be done with a message, and its versions. */
export const versions = {
  again: 'Answer',
  branch: 'Branch into a new chat',
  attach: 'Attach files to this message',
  cancel: 'Cancel',
  continue: 'Continue',
  delete: 'Delete this message',
  deleteWithFollowing: 'Delete this and all that follows',
  deleted: (count: number) => `Deleted ${f.plural(count, 'message', 'messages')}.`,
  edit: 'Edit',
  editNote: 'The earlier version stays.',
  field: 'Your message',
  label: (number: number, count: number) => `Version ${number} of ${count}`,
  loaded: (model: string) => `${model} (loaded)`,
  more: 'More',
  next: 'Next version',
  oneMoment: 'One moment…',
  previous: 'Previous version',
  send: 'Send',
  unanswered: 'This message has no answer.',
  whileAnswering: 'Not while this chat is answered',
  withModel: 'Answer with another model',
  writtenBy: (model: string) => `Written by ${model}`,
};

/** Finding text in the open chat. */
export const find = {
  close: 'Close (Esc)',
  field: 'Find in this chat',
  label: 'Find',
  next: 'Next (Enter)',
  none: 'Nothing found',
  of: (index: number, count: number) => `${f.count(index)} of ${f.count(count)}`,
  previous: 'Previous (Shift+Enter)',
};

/** What a model wrote for itself before its answer. */
export const reasoning = {
  answerNow: 'Answer now',
  answerNowNote: 'Stops thinking and begins the answer. The thoughts are kept.',
  copy: 'Copy reasoning',
  thinking: (milliseconds: number) => `Thinking… ${f.estimate(milliseconds)}`,
  thought: (milliseconds: number) => `Thought for ${f.estimate(milliseconds)}`,
};

export const toolCall = {
  copy: 'Copy tool call',
  label: (name: string) => `Tool call: ${name}`,
  nameless: 'without a name',
  outcomes: {
    complete: 'Cairn shows tool calls and runs none.',
    unfinished: 'Unfinished: the answer ended within this tool call. Cairn shows tool calls and runs none.',
    malformed: 'Malformed: the model did not keep to its form of tool calls. Cairn shows tool calls and runs none.',
  },
  writing: 'Being written',
};

/** An answer that waits because it repeats itself. */
export const held = {
  question: 'This answer repeats itself.',
  stop: 'Stop',
  goOn: 'Go on',
};

/** Messages that are sent when the answer is done. */
export const queue = {
  edit: 'Edit this message',
  label: 'Waiting messages',
  remove: 'Remove this message',
  send: 'Send now',
  stays: (count: number) => `${f.plural(count, 'message waits', 'messages wait')} to be sent`,
  waiting: (count: number): string =>
    count === 1
      ? 'Sent when the answer is done'
      : `${f.count(count)} messages, sent one after another when the answer is done`,
};

/** How an answer ended before its end, and what can be done about it. */
export const endings = {
  askWithout: (count: number): string => (count === 1 ? 'Ask without the document' : 'Ask without the documents'),
  continueAdvice: 'Let it go on, or have it written again.',
  context: 'This answer ended because the context of the model is full.',
  contextAdvice: 'Start a new chat, or raise the context length in the settings of the model.',
  failed: 'This answer could not be written.',
  failedAdvice: 'Regenerate to try again.',
  interrupted: 'Cairn quit before this answer was finished.',
  interruptedAdvice: 'Regenerate to have it written again.',
  length: (count: number) => `This answer reached the limit of ${tokens(count)}.`,
  lengthAdvice: 'Ask the model to continue, or raise the maximum answer length in Settings.',
  modelAdvice: 'Download or import the model again, or choose another one.',
  stopped: 'You stopped this answer.',
  stoppedAdvice: 'Regenerate to have it written again.',
  tooLong: (kind: { tokens: number; context_length: number }) =>
    `With this question there were ${tokens(kind.tokens)} to read, and the model reads ${f.count(kind.context_length)} at most.`,
  tooLongAdvice: (count: number) =>
    `What you ask next is read without this question and its ${count === 1 ? 'document' : 'documents'}: attach less, or choose a model with a longer context.`,
};

export const reading = {
  alreadySaved: (count: number) => `${f.count(count)} already saved`,
  label: 'Reading',
  loadingModel: 'Loading the model…',
  preparing: 'Getting ready…',
  progress: (processed: number, total: number) => `Reading ${f.count(processed)} of ${tokens(total)}`,
};

/** The line under an answer, and the figures behind it. */
export const stats = {
  answer: 'Answer',
  answerRate: (count: number, perSecond: number) => `${tokens(count)} at ${f.rate(perSecond)} tok/s`,
  appMemory: 'App memory',
  continued: 'Continued',
  continuedSaving: (milliseconds: number) => `Continued, ${f.estimate(milliseconds)} saved`,
  firstToken: 'First token',
  firstTokenAfter: (milliseconds: number) => `after ${f.milliseconds(milliseconds)}`,
  firstTokenAfterWait: (milliseconds: number, waitMs: number) =>
    `after ${f.milliseconds(milliseconds)}, ${f.milliseconds(waitMs)} of it waiting for other answers`,
  guessed: (accepted: number, proposed: number, checked: number) =>
    `${f.count(accepted)} of ${tokens(proposed)} taken, ${f.count(checked)} checked several at a time`,
  guesses: 'Guessed ahead',
  memory: (now: number, most: number) => `${f.bytes(now)} now, ${f.bytes(most)} at most`,
  mlxMemory: 'MLX memory',
  model: 'Model',
  prompt: 'Prompt',
  promptRead: (read: number, saved: number) => `${tokens(read)} read, ${f.count(saved)} from saved context`,
  promptContinued: (read: number, before: number) => `${tokens(read)} read, ${f.count(before)} read before`,
  readAhead: 'Read while you typed',
  sources: {
    in_memory: 'Still in memory',
    restored: 'From saved context',
    shared: 'Shared with other chats',
    read_ahead: 'Read while you typed',
  },
  read: (count: number) => `Read ${tokens(count)}`,
  readAndKept: (read: number, kept: number) => `Read ${tokens(read)}, kept ${f.count(kept)}`,
  firstReading: 'First reading with this model',
  withKept: (words: string, kept: number) => `${words}, ${f.count(kept)} kept`,
  readAgain: (count: number, reason: string) => `Read ${tokens(count)} again: ${reason}`,
  readingSpeed: 'Reading speed',
  rate: (perSecond: number) => `${f.rate(perSecond)} tok/s`,
  stoppedBeforeFirst: 'stopped before its first token',
};

/** One question, answered twice beside each other. */
export const compare = {
  title: 'Compare',
  open: 'Compare…',
  question: 'Your question',
  placeholder: 'What should both answer?',
  note: 'Both answers stay in the chat as versions.',
  same: 'Choose another model for one of the answers, or another setting.',
  stays: 'Whichever you go on with, the other one stays as a version.',
  start: 'Ask both',
  next: 'Next question to both',
  again: 'Compare again',
  close: 'Close',
  model: 'Model',
  temperature: 'Temperature',
  seed: 'Seed',
  asInChat: 'As in this chat',
  answers: ['First answer', 'Second answer'] as [string, string],
  column: (number: number, name: string) => `Answer ${number}, ${name}`,
  textOf: (name: string) => `Text of the answer by ${name}`,
  stop: 'Stop',
  stopNamed: (name: string) => `Stop the answer by ${name}`,
  choose: 'Go on with this one',
  chooseNamed: (name: string) => `Go on with this one, by ${name}`,
  copyNamed: (name: string) => `Copy the answer by ${name}`,
  waits: 'Both models do not fit into memory together. This one begins when the other answer has ended.',
  withTemperature: (value: number) => `temperature ${f.number(value)}`,
  withSeed: (value: number) => `seed ${value}`,
  withThinking: (level: string) => `thinking: ${level.toLowerCase()}`,
  firstToken: 'First token',
  after: (milliseconds: number) => `after ${f.milliseconds(milliseconds)}`,
  writing: 'Writing',
  rate: (perSecond: number) => `${f.rate(perSecond)} tok/s`,
  length: 'Length',
};

/** Why tokens were read again, and what prevents it the next time. */
export const misses = {
  /** Each is the end of a sentence. */
  causes: {
    system_prompt_changed: () => 'the system prompt changed',
    template_changed: () => 'the chat template of the model changed',
    message_changed: () => 'an earlier message changed',
    oldest_forgotten: () => 'the oldest messages are no longer read',
    other_model: (model: string) => (model === '' ? 'another model read it before' : `${model} read it before`),
    other_revision: () => 'the files of the model have changed',
    other_kv_format: () => 'its memory was stored in another way before',
    imported_again: () => 'its starting point was imported again',
    disk_limit: () => 'deleted to stay within the disk limit',
    memory_limit: () => 'dropped to stay within the memory limit',
    deleted: () => 'its saved context was deleted',
    cleared: () => 'all saved context was deleted',
    file_missing: () => 'a file of its saved context is missing',
    unreadable: (why: string) => `a file of its saved context cannot be read (${why})`,
    damaged: () => 'a file of its saved context was damaged',
    not_restorable: (why: string) => `its saved context could not be used (${why})`,
    removed_by_another_program: () => 'another program removed its saved context',
    not_written: (why: string) => `it could not be saved (${why})`,
    only_in_memory: () => 'it was saved in memory only',
    earlier_version: () => 'an earlier version of Cairn saved it',
    not_stored: () => 'this part had not been saved yet',
    other: (what: string) => (what === '' ? 'for another reason' : what),
  },
  remedies: {
    pin: {
      note: 'What a pinned chat has saved is never deleted to make room.',
      action: 'Pin this chat',
      done: 'This chat is pinned: what it has saved stays.',
    },
    diskLimit: (bytes: number) => ({
      note: 'Nothing is saved on disk, because its limit is 0, as it is by default on a nearly full disk.',
      action: `Save up to ${f.bytes(bytes)} on disk`,
      done: `Saved context may take ${f.bytes(bytes)} on disk from now on.`,
    }),
    memoryLimit: (bytes: number) => ({
      note: 'More room keeps more chats ready.',
      action: `Raise the memory limit to ${f.bytes(bytes)}`,
      done: `Saved context may take ${f.bytes(bytes)} of memory from now on.`,
    }),
    systemPrompt: {
      note: 'With the system prompt from before, the chat goes on from what was saved then.',
      action: 'Undo the change of the system prompt',
      done: 'The system prompt is as it was before.',
    },
    model: (model: string) => ({
      note: `${model} goes on from where it was.`,
      action: `Go on with ${model}`,
      done: `${model} answers from now on.`,
    }),
    kvBits: (model: string) => ({
      note: 'What was stored before is used again in the way it was stored.',
      action: 'Store as before',
      done: `${model} stores its memory as before.`,
    }),
  },
};

export const systemPrompt = {
  example: 'For example: Answer in short sentences.',
  fixed: 'It comes from the starting point and cannot be changed here.',
  note: 'The model reads this before everything else. If you change it, the chat is read again once.',
  none: 'None',
  own: 'From the model, as long as this chat has none of its own',
  unknown: 'None set. The model may have its own.',
  title: 'System prompt',
  titleSet: 'System prompt (set)',
};

/** Text that a model wrote, and text that it read. */
export const content = {
  code: 'Code',
  codeIn: (language: string) => `Code, ${language}`,
  copyCode: 'Copy code',
  done: 'Done',
  footnote: (label: string) => `Footnote ${label}`,
  imageNotLoaded: 'Image, not loaded: ',
  imageTitle: (address: string) => `This image is not loaded: ${address}`,
  linkNotOpened: (target: string) => `Not opened: ${target}`,
  open: 'To do',
  plainText: 'text',
  saveCode: 'Save as a file…',
  table: 'Table',
  wrapCode: 'Wrap long lines',
  /** The speaker of the turn that a special token opens. */
  speakers: { system: 'System:', user: 'You:', assistant: 'Answer:', tool: 'Tool:' },
};

/** How likely the tokens of an answer were. */
export const probabilities = {
  alternatives: 'Likeliest here',
  bits: (bits: number) => `${f.number(Math.round(bits * 10) / 10)} bits`,
  branch: (text: string, share: number, ends: boolean) => `Branch with ${named(text, ends)}, ${shareOf(share)}`,
  branchHere: 'Branch here',
  choice: (text: string, share: number, ends: boolean) => `${named(text, ends)}, ${shareOf(share)}.`,
  chosen: (text: string, share: number, ends: boolean) => `${named(text, ends)}, ${shareOf(share)}, in this answer`,
  closeTitle: 'Close (Esc)',
  counts: (count: number, unsure: number) => `${tokens(count)}, ${f.count(unsure)} unsure`,
  end: 'end',
  entropy: 'Entropy',
  entropyNote: 'Over the whole vocabulary, before temperature and other sampling settings',
  first: (count: number) => `Of this long answer the first ${tokens(count)} are shown.`,
  isChosen: 'This is the answer as it is.',
  keys: {
    title: 'Keys',
    walk: 'Walk the tokens',
    choose: 'Choose another',
    branch: 'Branch here',
    nextUnsure: 'Next unsure token',
    close: 'Close',
  },
  load: (model: string) => `Load ${model}`,
  noModel: (model: string) => `This answer was written by ${model}, which is not on ${machine} any more.`,
  noTokens: 'The tokens of this answer are not saved, so their probabilities cannot be computed.',
  notLoaded: (model: string) => `This answer was written by ${model}, which is not loaded.`,
  others: 'Others',
  piece: '·',
  progress: (processed: number, total: number) => `Reading ${f.count(processed)} of ${tokens(total)}`,
  reading: 'Reading the answer again…',
  share: (share: number) => shareOf(share),
  sure: 'Sure',
  title: 'Probability',
  token: (text: string, share: number, ends: boolean, count: number) =>
    `${named(text, ends)}, ${shareOf(share)}, ${f.plural(count, 'alternative', 'alternatives')}`,
  tokens: 'Tokens of this answer',
  unsure: 'Unsure',
  whole: 'Whole answer',
  wouldEnd: 'The answer would end here.',
};

/** Only what is certain is 100 %, and only what cannot be is 0 %. */
function shareOf(share: number): string {
  if (share < 0.005) return `< ${f.share(0.01)}`;
  return share > 0.995 ? `> ${f.share(0.99)}` : f.share(share);
}

function named(text: string, ends: boolean): string {
  if (ends) return 'end of the answer';
  const words = text.trim();
  return words === ''
    ? text.includes('\n')
      ? 'line break'
      : text === ''
        ? 'part of a character'
        : 'space'
    : `“${words}”`;
}
