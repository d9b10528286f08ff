// The settings and what their pages say.
import type { Settings } from '../../platform/wire';
import { f, machine, tokens } from './formats';
import type { SettingText } from '../settingText';

/** One entry for each row of the table of settings. */
export const settingRows: Record<keyof Settings, SettingText> = {
  appearance: { label: 'Appearance', choices: { system: 'System', light: 'Light', dark: 'Dark' } },
  default_model: { label: 'Default model', note: 'Loaded when Cairn starts.' },
  temperature: { label: 'Temperature', note: '0 always takes the likeliest token.' },
  max_tokens: { label: 'Maximum answer length', unit: 'tokens' },
  titles_by_model: {
    label: 'Titles written by the model',
    note: 'While nothing else is to do, in place of the first line. A title that you wrote stays.',
  },
  thinking: {
    label: 'Thinking',
    note: 'How long the model thinks before it answers. A model without the chosen level takes the nearest one. With some models a change has the chat processed again.',
    choices: {
      automatic: 'Automatic',
      off: 'Off',
      on: 'On',
      minimal: 'Minimal',
      low: 'Low',
      medium: 'Medium',
      high: 'High',
      xhigh: 'Very high',
      max: 'Maximum',
    },
  },
  holds_loops: { label: 'Hold answers that repeat themselves', note: 'Cairn asks whether to stop or to go on.' },
  at_overflow: {
    label: 'When the context is full',
    note: 'Stop ends the chat there. Otherwise the oldest messages are no longer read, or a summary that the model writes is read instead; they stay in the chat.',
    choices: { stop: 'Stop', forget: 'Forget', summarize: 'Summarize' },
  },
  top_p: { label: 'Top-p', note: 'Leaves out the least likely tokens. 0 and 1 turn it off.' },
  top_k: { label: 'Top-k', note: 'Keeps so many of the likeliest tokens; 0 turns it off.' },
  min_p: { label: 'Min-p', note: 'Drops tokens below this share of the likeliest one; 0 turns it off.' },
  repetition_penalty: {
    label: 'Repetition penalty',
    note: 'Above 1 the last words are less likely to come again; 0 and 1 turn it off.',
  },
  presence_penalty: {
    label: 'Presence penalty',
    note: 'Above 0, words that were used lately are less likely; 0 turns it off.',
  },
  frequency_penalty: {
    label: 'Frequency penalty',
    note: 'As the presence penalty, for each time that a word was used.',
  },
  xtc_probability: {
    label: 'XTC probability',
    note: 'How often the likeliest words are left out, for less expected ones; 0 turns it off.',
  },
  xtc_threshold: { label: 'XTC threshold', note: 'From which probability on XTC leaves words out.' },
  stop: {
    label: 'Stop strings',
    note: 'The answer ends before one of them: one a line, with \\n for a line break.',
    placeholder: 'None',
  },
  seed: { label: 'Seed', note: 'A fixed seed makes answers repeatable.', placeholder: 'Random' },
  alias: { label: 'Alias', note: 'What this model is called here and in requests to Cairn.', placeholder: 'None' },
  is_pinned: { label: 'Pinned', note: 'It stays in memory until you unload it.' },
  idle_unload: {
    label: 'Unload when idle',
    note: 'Frees the memory of the model. What a chat has read is saved first.',
    overruledNote: 'Without effect while the model is pinned: it stays in memory.',
    choices: {
      never: 'Never',
      five_minutes: 'After 5 minutes',
      fifteen_minutes: 'After 15 minutes',
      one_hour: 'After 1 hour',
      four_hours: 'After 4 hours',
    },
  },
  system_prompt: { label: 'System prompt', note: 'For new chats with this model.', placeholder: 'None' },
  context_length: {
    label: 'Context length',
    note: 'How long a chat with this model can get, in tokens (pieces of words). Less takes less memory.',
    boundNote: (most: number) => `This model reads at most ${tokens(most)}.`,
    unit: 'tokens',
    placeholder: 'All',
  },
  kv_bits: {
    label: 'Precision of context',
    note: 'How exactly the model holds in memory what it has read of a chat (the KV cache). Fewer bits take less memory.',
    choices: { plain: 'Exact', eight_bits: '8-bit', four_bits: '4-bit' },
  },
  keep_tokens: {
    label: 'Shorten long prompts to',
    note: 'Of a longer prompt the model keeps what matters most for its end, and forgets the rest. Answers come faster; later questions about what was forgotten may be answered wrongly.',
    unit: 'tokens',
    placeholder: 'All',
  },
  bf16_state: {
    label: 'State in 16 bits',
    note: 'Chats with this model take less memory and less of the disk; its answers are nearly the same.',
  },
  speed: {
    label: 'Speed',
    note: 'Guesses ahead, so that the model checks several words at once; answers stay the same. Automatic guesses from what the chat says already, where that saves time. A draft model guesses too, where it saves more.',
    choices: { automatic: 'Automatic', plain: 'Plain' },
  },
  draft_model: { label: 'Draft model', note: 'A smaller model of the same family that guesses ahead.' },
  wires_memory: {
    label: 'Never swap models out',
    note: 'On a Mac with macOS 15 or later: loaded models stay in memory, so large ones answer faster, and other apps have less memory. Takes effect between two answers.',
    statusNote: (status, modelTitle) => {
      const { recommended_bytes, tight_model } = status?.wired_memory ?? {};
      if (!tight_model || recommended_bytes === undefined) return null;
      return `“${modelTitle(tight_model.name)}” takes ${f.bytes(tight_model.bytes)} of the ${f.bytes(recommended_bytes)} that the GPU can keep, so it can be slow. Fewer bits or a smaller model help, or a higher limit: sudo sysctl iogpu.wired_limit_mb=N.`;
    },
  },
  cache_budget_bytes: {
    label: 'Disk limit',
    unit: 'GB',
    note: 'For saved context; 0 saves only pinned chats and starting points.',
    statusNote: (status) => `Now ${f.bytes(status?.cache_disk_bytes ?? 0)}.`,
  },
  cache_ram_budget_bytes: {
    label: 'Memory limit',
    unit: 'GB',
    note: 'For saved context; what is in memory continues without a read from disk.',
    statusNote: (status) => `Now ${f.bytes(status?.cache_ram_bytes ?? 0)}.`,
  },
  compresses_cache: {
    label: 'Keep saved context smaller on disk',
    note: 'Takes about a third less, and not a word is lost. Applies to what is saved from now on.',
  },
  hub_endpoint: {
    label: 'Address of the hub',
    note: 'Where models are found and downloaded. An access token is sent only to the hub that it was entered for.',
  },
  download_folder: {
    label: 'Folder for downloads',
    note: 'New downloads go here. Models in the default folder stay in the list.',
  },
  hub_proxy: {
    label: 'Proxy',
    note: 'An http, https or socks5 address, for the connection to the hub.',
    placeholder: 'The system’s proxy',
  },
  api_is_on: { label: 'Serve other programs', note: `Only on ${machine}; also after a restart.` },
  api_port: { label: 'Port', note: 'Programs have to be told of a change.' },
};

export const settings = {
  title: 'Settings',
  open: 'Settings',
  ofChat: 'Answers of this chat',
  pages: {
    general: 'General',
    models: 'Models',
    generation: 'Generation',
    storage: 'Storage',
    shortcuts: 'Shortcuts',
    server: 'Server',
    about: 'About',
  },
  sections: {
    general: 'General',
    models: 'Models',
    generation: 'Generation',
    advanced: 'Advanced',
    storage: 'Storage',
    hub: 'Hugging Face',
    server: 'Server',
  },
  language: 'Language',
  languageNote: 'Of this window.',
  languages: { system: 'System', en: 'English', de: 'Deutsch' },
  used: (bytes: number) => `${f.bytes(bytes)} of saved context on disk`,
  deletion: 'Delete',
  deleteRest: 'All but pinned and starting points',
  deleteRestNote: 'Chats stay, and are read again once when you continue them.',
  deleteRestAction: 'Delete saved context…',
  shortcutsNote: 'They work in every page of the window.',
  elsewhere: 'In the chat and in the list',
  version: (version: string) => `Version ${version}`,
  about: 'A conversation keeps its place: what a model has read once is not read again.',
  licence: 'MIT or Apache-2.0',
  licenceLabel: 'Licence',
  rows: settingRows,
  rereadsNote: 'After a change, chats are read again once.',
  targets: 'Settings for',
  targetNames: { app: 'All chats', model: 'This model', persona: 'This persona', chat: 'This chat' },
  forAllNote: 'What a model or a chat sets for itself comes first.',
  forModelNote: (name: string) => `What ${name} answers. What a chat sets for itself comes first.`,
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
  /** The level that a model takes by itself. */
  automaticThinking: (level: string) => `Automatic (${level})`,
  lastUsed: 'Last used',
  withDraft: (name: string) => `With ${name} as draft model`,
  loadAtStart: 'Load at start',
  loadAtStartNote: 'Instead of the model that was used last.',
  notFound: (name: string) => `${name} (not found)`,
  diagnostics: 'Diagnostics',
  diagnosticsNote: 'For reporting a problem. Without texts of chats and without secrets.',
  copyDiagnostics: 'Copy diagnostics',
  deletesSaved: (bytes: number) =>
    `This deletes about ${f.bytes(bytes)} of saved context. Pinned chats and starting points stay.`,
  enterNumber: (least: string, most: string) => `Enter a number from ${least} to ${most}.`,
  enterWhole: (least: string, most: string) => `Enter a whole number from ${least} to ${most}.`,
};
