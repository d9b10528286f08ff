// What a chat has of its own: context, presets of parameters, personas.
import { f, tokens } from './formats';

/** How much of the model's context a chat takes, and what happens when it is full. */
export const context = {
  title: 'Context',
  used: (used: number, limit: number) => `${f.count(used)} of ${tokens(limit)}`,
  gauge: (used: number, limit: number, saved: number) =>
    `${f.count(used)} of ${tokens(limit)} used, ${f.count(saved)} of them saved`,
  saved: (count: number) => `${f.count(count)} of them saved`,
  parts: {
    system_prompt: 'System prompt',
    documents: 'Documents',
    starting_point: 'Starting point',
    summary: 'Summary',
    messages: 'Messages',
    template: 'Chat template',
    left: 'Left',
    over: 'Over the limit',
  },
  token: 'A token is a short word or a piece of a longer one. The model reads and writes in tokens.',
  compared: 'The longer of the two answers is counted, against the shorter of the two contexts.',
  noModel: 'How much room is left is known once the model is loaded.',
  nearlyFull: (left: number) => `About ${tokens(left)} are left in this chat. When they are used up, it cannot go on.`,
  full: 'This message no longer fits into the context of the model.',
  fullAlone:
    'This message is longer than the context of the model. Shorten it, remove a document, or choose a model with a longer context.',
  fullForFailed: 'To ask the last question again, make room for it.',
  fullNow: (used: number, limit: number) => `The context is full: ${f.count(used)} of ${tokens(limit)}.`,
  nextForgets: 'The context is nearly full. Then the oldest messages are forgotten, and the rest is read again once.',
  nextSummarizes:
    'The context is nearly full. Then the model summarizes the oldest messages, and reads the rest again once.',
  forget: 'Forget the oldest messages',
  summarize: 'Summarize them',
  forgotten: 'The model no longer reads what is above.',
  summarized: 'The model reads this summary instead of what is above.',
  summary: 'Summary of the earlier messages',
  readAgain: 'Read it again',
  showEarlier: (count: number) => `Show ${f.plural(count, 'earlier message', 'earlier messages')}`,
  hideEarlier: 'Hide the earlier messages',
  summarizing: 'Summarizing the earlier messages…',
  summaryLeft: (seconds: number) => `${f.timeLeft(seconds)} left at most`,
  summaryRead: (processed: number, total: number) =>
    `read ${f.count(processed)} of ${f.plural(total, 'token', 'tokens')}`,
  summaryWritten: (written: number, limit: number) =>
    `written ${f.count(written)} of at most ${f.plural(limit, 'token', 'tokens')}`,
};

/** Named parameters. */
export const presets = {
  title: 'Presets',
  actions: (name: string) => `Actions for the preset ${name}`,
  apply: (name: string) => `Use the preset ${name}`,
  applied: (name: string) => `This chat uses the values of “${name}”.`,
  builtIn: {
    default: { name: 'Default', note: 'The values of the settings, the model or the persona' },
    precise: { name: 'Precise', note: 'The likeliest words: for facts, code and summaries' },
    lively: { name: 'Lively', note: 'Less likely words as well: for ideas and stories' },
  },
  deleted: (name: string) => `Deleted the preset “${name}”.`,
  name: 'Name of the preset',
  nothing: 'Change a value first: a preset has the values that this chat sets itself.',
  save: 'Save as preset…',
  use: 'Use',
};

export const personas = {
  title: 'Personas',
  about:
    'A persona has a name, a system prompt, and if you like a model and parameters of its own. Start a chat with it from the sidebar.',
  one: 'Persona',
  actions: (name: string) => `Actions for the persona ${name}`,
  anyModel: 'The one that is loaded',
  create: 'Create',
  delete: 'Delete persona',
  deleted: (name: string) => `Deleted the persona “${name}”. Its chats stay.`,
  edit: 'Edit persona…',
  editNamed: (name: string) => `Edit the persona ${name}…`,
  editTitle: 'Edit persona',
  made: (name: string) => `Made the persona “${name}”.`,
  model: 'Model',
  new: 'New persona…',
  newTitle: 'New persona',
  newNote: 'Its parameters begin as those that this chat sets itself.',
  note: 'Chats that you begin with it start with this system prompt, which is then read once for all of them. Chats that are there keep theirs.',
  parameters: 'Parameters',
  startChat: 'New chat',
  startChatWith: (name: string) => `New chat with ${name}`,
  withName: (name: string) => `A chat with ${name}`,
};
