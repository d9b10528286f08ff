// The settings and what their pages say.
import type { Settings } from '../../platform/wire';
import { f } from './formats';
import type { SettingText } from '../settingText';

/** One entry for each row of the table of settings. */
export const settingRows: Record<keyof Settings, SettingText> = {
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
    statusNote: (status) => `Now ${f.bytes(status?.cache_disk_bytes ?? 0)}.`,
  },
  cache_ram_budget_bytes: {
    label: 'Memory limit',
    unit: 'GB',
    note: 'For saved context; what is in memory continues without a read from disk.',
    statusNote: (status) => `Now ${f.bytes(status?.cache_ram_bytes ?? 0)}.`,
  },
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
    about: 'About',
  },
  sections: {
    general: 'General',
    models: 'Models',
    generation: 'Generation',
    advanced: 'Advanced',
    storage: 'Storage',
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
  targetNames: { app: 'All chats', model: 'This model', chat: 'This chat' },
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
  lastUsed: 'Last used',
  notFound: (name: string) => `${name} (not found)`,
  diagnostics: 'Diagnostics',
  diagnosticsNote: 'For reporting a problem. Without texts of chats and without secrets.',
  copyDiagnostics: 'Copy diagnostics',
  deletesSaved: (bytes: number) =>
    `This deletes about ${f.bytes(bytes)} of saved context. Pinned chats and starting points stay.`,
  enterNumber: (least: string, most: string) => `Enter a number from ${least} to ${most}.`,
  enterWhole: (least: string, most: string) => `Enter a whole number from ${least} to ${most}.`,
};
