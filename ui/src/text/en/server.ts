// The server that other programs ask: its switch, its keys, what it was asked.
import { f, machine } from './formats';

export const server = {
  intro: `Programs on ${machine} can ask Cairn’s models as they ask OpenAI’s or Anthropic’s.`,
  byCommand: 'The server already runs: “cairn serve” started it with this page, and ends it.',
  address: 'Address',
  addressNote: 'Some programs want it with /v1 at the end.',
  copyAddress: 'Copy the address',
  off: 'Off',
  token: 'Start-up token',

  keys: 'Keys',
  keysNote: 'Each program gets a key, and with it saved context of its own.',
  noKeys: 'No program has a key yet.',
  make: 'Make key…',
  makeTitle: 'Make a key',
  makeNote: 'Name it after the program that will use it.',
  makeAction: 'Make key',
  made: (name: string) => `Copy the key ${f.quote(name)} now: it is not shown again.`,
  madeLabel: 'The new key',
  copyKey: 'Copy the key',
  done: 'Done',
  used: (milliseconds: number | null, now: number) =>
    milliseconds === null ? 'Never used' : `Used ${f.ago(milliseconds, now) ?? 'just now'}`,
  madeOn: (milliseconds: number) => `Made on ${f.date(milliseconds)}`,
  revoke: 'Revoke…',
  revokeOf: (name: string) => `Revoke ${name}…`,
  revokeTitle: (name: string) => `Revoke ${f.quote(name)}?`,
  revokeNote: 'Programs that use this key are refused from now on, and their running answers end.',
  deletesSaved: 'Also delete the context that was saved for it',
  deletesSavedNote: 'Otherwise it stays until its room is needed.',
  revokeAction: 'Revoke key',
  revoked: (name: string) => `Revoked ${f.quote(name)}`,

  setUps: 'Set up a program',
  setUpsLabel: 'Program',
  programs: { codex: 'Codex', claude_code: 'Claude Code', continue: 'Continue', zed: 'Zed' },
  copySetUp: 'Copy this part',
  /** For a model whose chat template takes no tools. */
  genericTools:
    'Its chat template takes no tools, so Cairn describes them to it in a general form. How well it calls them depends on the model. Its answers have the header x-cairn-tools: generic.',
  newKeyNote: 'It has the new key in it.',
  placeholderNote: 'Put a key in place of YOUR_KEY.',
  places: {
    codex_file: 'In ~/.codex/config.toml.',
    codex_terminal: 'In the terminal, before you start codex.',
    claude_code_terminal: 'In the terminal, before you start claude.',
    continue_file: 'In ~/.continue/config.yaml.',
    zed_file: 'In Zed’s settings.json. Zed asks for the key itself, in its settings under LLM Providers.',
  },

  requests: 'Last requests',
  requestsNote: 'Only in memory, without what was asked and answered.',
  noRequests: 'Nothing was asked yet.',
  columns: {
    time: 'Time',
    key: 'Key',
    request: 'Request',
    read: 'Tokens in',
    written: 'Out',
    first: 'First token',
    rate: 'Tokens/s',
    status: 'Status',
  },
  /** Of the tokens in. */
  cached: (count: number) => `${f.count(count)} cached`,
  count: f.count,
  milliseconds: f.milliseconds,
  rate: f.rate,
  unknownKey: 'Unknown',
  none: '–',
};
