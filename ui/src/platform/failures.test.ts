// What a core says has failed: each kind has a sentence in both languages.
import { expect, test } from 'vitest';
import { knownNames } from '../models/knownNames.svelte';
import { de } from '../text/de';
import { en } from '../text/en';
import { callModels, failureSentence, noticeSentence } from './failures';
import type { FailureKind, NoticeKind, UnexpectedQuit } from './wire';

const model = 'mlx-community/Qwen3-4B-4bit';
/** The type says that no kind is missing. */
const kinds: { [Type in FailureKind['type']]: Extract<FailureKind, { type: Type }>[] } = {
  no_model: [{ type: 'no_model' }],
  not_loaded: [{ type: 'not_loaded', model }],
  not_enough_memory: (
    [
      ['answer', [], []],
      [{ model }, [], []],
      [{ model }, ['o/other'], []],
      [{ model }, ['o/other'], ['o/pinned', 'o/third']],
      ['answer', [], ['o/pinned']],
      ['texts', [], []],
    ] as const
  ).map(([what, in_use, pinned]) => ({
    type: 'not_enough_memory',
    what,
    needed_bytes: 9e9,
    free_bytes: 3e9,
    limit_bytes: 12e9,
    in_use: [...in_use],
    pinned: [...pinned],
  })),
  load_cancelled: [{ type: 'load_cancelled', model }],
  context_full: [{ type: 'context_full', tokens: 5000, context_length: 4096 }],
  interrupted: [{ type: 'interrupted' }],
  engine_fault: [{ type: 'engine_fault' }],
  closing: [{ type: 'closing' }],
  offline: [{ type: 'offline', host: 'hub.example', detail: 'Connection refused (os error 111).' }],
  too_many_requests: [
    { type: 'too_many_requests', host: 'hub.example', seconds: 40 },
    { type: 'too_many_requests', host: 'hub.example', seconds: 300 },
  ],
  disk_full: [{ type: 'disk_full' }],
  no_room: [{ type: 'no_room', folder: '/a/models', needed_bytes: 4e9, free_bytes: 1e9 }],
  not_writable: [
    { type: 'not_writable', path: '/a/b', detail: null },
    { type: 'not_writable', path: '/a/b', detail: 'No space left on device (os error 28).' },
  ],
  not_readable: [{ type: 'not_readable', name: 'chats.json' }],
  no_chats: [{ type: 'no_chats', name: 'chats.json' }],
  still_answering: [{ type: 'still_answering' }],
  gone: (
    ['chat', 'message', 'deletion', 'document', 'starting_point', 'folder', 'preset', 'persona', 'key', 'job'] as const
  ).map((what) => ({ type: 'gone', what })),
  name_taken: [{ type: 'name_taken', name: 'Manual' }],
  no_name: [{ type: 'no_name' }],
  empty_message: [{ type: 'empty_message' }],
  nothing_saved: [{ type: 'nothing_saved' }],
  fault: [{ type: 'fault' }],
  database: [{ type: 'database', detail: 'Why it broke.' }],
  engine: [{ type: 'engine', detail: 'Why it broke.' }],
  no_device: [{ type: 'no_device', detail: 'Why it broke.' }],
  declined: [{ type: 'declined' }],
  only_in_app: [
    { type: 'only_in_app', variable: null },
    { type: 'only_in_app', variable: 'HF_ENDPOINT' },
  ],
  load_failed: [{ type: 'load_failed', model, detail: 'Why it broke.' }],
  model_unusable: [{ type: 'model_unusable', model, detail: 'Why it broke.' }],
  model_set_aside: [{ type: 'model_set_aside', model }],
  other_model: [
    { type: 'other_model', model },
    { type: 'other_model', model: null },
  ],
  beginning_lost: [{ type: 'beginning_lost' }],
  no_such_model: [{ type: 'no_such_model', model }],
  model_exists: [{ type: 'model_exists', path: 'a-path' }],
  bad_model_name: [{ type: 'bad_model_name', name: 'a-name' }],
  link_out: [{ type: 'link_out', path: 'a-path' }],
  read_only_model: [{ type: 'read_only_model', model, path: 'a-path' }],
  no_model_file: [{ type: 'no_model_file', name: 'a-name' }],
  bad_gguf: [{ type: 'bad_gguf', detail: 'Why it broke.' }],
  not_deleted: [{ type: 'not_deleted', path: 'a-path', detail: 'Why it broke.' }],
  not_copied: [{ type: 'not_copied', path: 'a-path', detail: 'Why it broke.' }],
  incomplete_model: [{ type: 'incomplete_model', path: 'a-path', detail: 'Why it broke.' }],
  unreadable_model: [{ type: 'unreadable_model', path: 'a-path', detail: 'Why it broke.' }],
  import_cancelled: [{ type: 'import_cancelled' }],
  another_import: [{ type: 'another_import' }],
  downloading: [{ type: 'downloading', model }],
  not_downloading: [{ type: 'not_downloading', model }],
  not_a_folder: [{ type: 'not_a_folder', path: 'a-path' }],
  model_deleted: [{ type: 'model_deleted', model }],
  versions_deleted: [{ type: 'versions_deleted', model }],
  token_from_environment: [{ type: 'token_from_environment' }],
  token_not_changed: [{ type: 'token_not_changed', detail: 'Why it broke.' }],
  no_model_folder: [{ type: 'no_model_folder' }],
  bad_repo: [{ type: 'bad_repo', name: 'a-name' }],
  bad_revision: [{ type: 'bad_revision', revision: 'a-revision' }],
  bad_endpoint: [{ type: 'bad_endpoint', endpoint: 'a-endpoint', detail: 'Why it broke.' }],
  bad_proxy: [{ type: 'bad_proxy', detail: 'Why it broke.' }],
  bad_token: [{ type: 'bad_token' }],
  no_tls: [{ type: 'no_tls', detail: 'Why it broke.' }],
  stalled: [{ type: 'stalled', host: 'a-host' }],
  hub_failed: [{ type: 'hub_failed', host: 'a-host', status: 503 }],
  unexpected_answer: [{ type: 'unexpected_answer', host: 'a-host', detail: 'Why it broke.' }],
  not_on_hub: [{ type: 'not_on_hub', model }],
  no_revision: [{ type: 'no_revision', model, revision: 'a-revision' }],
  gated: [{ type: 'gated', model, page: 'a-page' }],
  unauthorized: [
    { type: 'unauthorized', model, has_token: true },
    { type: 'unauthorized', model, has_token: false },
  ],
  forbidden: [{ type: 'forbidden', model }],
  hostile_listing: [{ type: 'hostile_listing', model, detail: 'Why it broke.' }],
  no_weights: [{ type: 'no_weights', model }],
  changed_on_hub: [{ type: 'changed_on_hub', model, file: 'a-file' }],
  damaged_file: [{ type: 'damaged_file', model, file: 'a-file' }],
  name_too_long: [{ type: 'name_too_long', most: 40 }],
  too_many_documents: [{ type: 'too_many_documents', most: 40 }],
  empty_document: [{ type: 'empty_document', name: 'a-name' }],
  document_too_long: [{ type: 'document_too_long', name: 'a-name', bytes: 4e9, most_bytes: 4e9 }],
  cannot_go_on: [{ type: 'cannot_go_on' }],
  nothing_to_answer: [{ type: 'nothing_to_answer' }],
  not_your_message: [{ type: 'not_your_message' }],
  answer_unsaved: [{ type: 'answer_unsaved' }],
  summary_failed: [{ type: 'summary_failed', detail: 'Why it broke.' }],
  has_starting_point: [{ type: 'has_starting_point' }],
  only_in_memory: [
    { type: 'only_in_memory', detail: 'Why it broke.' },
    { type: 'only_in_memory', detail: null },
  ],
  cache_off: [{ type: 'cache_off', detail: 'Why it broke.' }],
  other_answer_stopping: [{ type: 'other_answer_stopping' }],
  private_chat: [{ type: 'private_chat' }],
  empty_preset: [{ type: 'empty_preset' }],
  setting_refused: [
    { type: 'setting_refused', key: 'temperature', detail: 'It is too large.' },
    { type: 'setting_refused', key: 'alias', detail: 'An alias is one line.' },
  ],
  context_too_long: [{ type: 'context_too_long', model, most: 40 }],
  kv_not_quantizable: [{ type: 'kv_not_quantizable', model }],
  needs_exact_context: [{ type: 'needs_exact_context', model }],
  draft_needs_all: [{ type: 'draft_needs_all', model }],
  alias_spaces: [{ type: 'alias_spaces' }],
  alias_taken: [{ type: 'alias_taken', name: 'a-name', model }],
  own_draft: [{ type: 'own_draft' }],
  draft_differs: [{ type: 'draft_differs', draft: model, model }],
  empty_question: [{ type: 'empty_question' }],
  bad_placeholder: [{ type: 'bad_placeholder', word: 'a-word', meant: 'a-meant' }],
  empty_option: [{ type: 'empty_option' }],
  option_count: [{ type: 'option_count', most: 40, count: 40 }],
  option_twice: [{ type: 'option_twice', label: 'a-label' }],
  too_few_checked: [{ type: 'too_few_checked', least: 40, count: 40 }],
  no_texts: [{ type: 'no_texts' }],
  too_many_texts: [{ type: 'too_many_texts', most: 40 }],
  bad_line: [{ type: 'bad_line', line: 12, form: 'a-form', detail: 'Why it broke.' }],
  no_column: [{ type: 'no_column', column: 'a-column', columns: ['a', 'b'] }],
  no_text_in_line: [{ type: 'no_text_in_line', line: 12 }],
  not_json: [{ type: 'not_json', name: 'a-name', line: 12, column: 12 }],
  archive_file: [{ type: 'archive_file', name: 'a-name' }],
  newer_file: [{ type: 'newer_file', name: 'a-name' }],
  upload_too_large: [{ type: 'upload_too_large', most_bytes: 4e9 }],
};

test.each(Object.values(kinds).flat())('%j is said in both languages', (kind) => {
  const [english, german] = [en, de].map(({ failures }) =>
    (failures[kind.type] as (kind: FailureKind) => string)(kind),
  );
  for (const sentence of [english, german]) {
    expect(sentence).toMatch(/^\S.*[^ .]\.$/u);
    expect(sentence, 'no brackets in brackets').not.toMatch(/\([^)]*\(/u);
  }
  expect(german).not.toBe(english);
});

const why = { code: 'storage' as const, message: 'The disk is full.', kind: { type: 'disk_full' as const } };
const recovered = { type: 'recovered' as const, damaged: '/a/damaged.db', unreadable_messages: 0 };
const quit = { during: null, model: null, job_id: null, job: null, conversation_id: null, is_set_aside: false };
const during = (when: UnexpectedQuit['during'], change: Partial<UnexpectedQuit> = {}) => ({
  type: 'quit_unexpectedly' as const,
  quit: { ...quit, during: when, model, ...change },
});
const asked = { job_id: 'j', job: 'Letters' };
const notices: { [Type in Exclude<NoticeKind['type'], 'failed'>]: Extract<NoticeKind, { type: Type }>[] } = {
  answer_kept: [{ type: 'answer_kept', why }],
  answer_not_saving: [{ type: 'answer_not_saving', why }],
  answer_saved: [{ type: 'answer_saved' }],
  job_not_saved: [{ type: 'job_not_saved', why }],
  update_unused: [{ type: 'update_unused', model, why }],
  draft_unused: [{ type: 'draft_unused', model, draft: 'o/small', why }],
  draft_stays: [{ type: 'draft_stays', model, why }],
  not_reloaded: [true, false].map((is_in_memory) => ({ type: 'not_reloaded', model, is_in_memory, why })),
  quit_unexpectedly: [
    { type: 'quit_unexpectedly', quit },
    during('loading'),
    during('importing_model', { model: null }),
    during('importing_context'),
    during('answering', { conversation_id: 'c' }),
    during('answering', { is_set_aside: true }),
    during('comparing'),
    during('program'),
    during('job', asked),
    during('job', { ...asked, is_set_aside: true }),
    during('job'),
    during('probabilities'),
    during('reading_ahead'),
    during('title'),
    during('counting'),
    during('measuring'),
  ],
  started_quietly: [{ type: 'started_quietly' }],
  recovered: [
    { ...recovered, conversations: 12, total_conversations: 13, backup: null },
    { ...recovered, conversations: 1, total_conversations: null, backup: '/a/b.db', unreadable_messages: 1 },
    { ...recovered, conversations: 0, total_conversations: 0, backup: null, unreadable_messages: 7 },
  ],
  database_saved: [true, false].map((is_in_place) => ({ type: 'database_saved', path: '/a/cairn.db', is_in_place })),
  database_gone: [{ type: 'database_gone', why }],
};

test.each(Object.values(notices).flat())('the notice %j is said in both languages', (kind) => {
  const [english, german] = [en, de].map(({ failures, notices: words }) => {
    const said = words[kind.type] as (kind: object) => string;
    return said({ ...kind, why: failures.disk_full({ type: 'disk_full' }) });
  });
  for (const sentence of [english, german]) expect(sentence).toMatch(/^\S.*[^ .]\.$/u);
  expect(german).not.toBe(english);
});

test('a notice has the names of models and the reason in words; one of tomorrow is the core’s own', () => {
  const [kind] = notices.draft_stays;
  callModels((name) => knownNames.of(name));
  expect(noticeSentence({ text: '', kind })).toBe(
    'The draft model of Qwen3 4B stays in memory. The disk is full: make room on it, then try again.',
  );
  const text = 'Something new.';
  expect(noticeSentence({ text, kind: { type: 'of_tomorrow' } as unknown as NoticeKind })).toBe(text);
  expect(noticeSentence({ text })).toBe(text);
  expect(noticeSentence({ text, kind: { type: 'failed', why } })).toMatch(/^The disk is full/);
});

test('of the core’s own sentences a German window says that something did not work', () => {
  expect(de.failedOtherwise('The tokenizer has no such token.')).toBe(
    'Das ging nicht. The tokenizer has no such token.',
  );
});

test('what is rare, or newer than the window, is the core’s own sentence', () => {
  const message = 'The tokenizer has no such token.';
  expect(failureSentence({ message })).toBe(message);
  expect(failureSentence({ message, kind: null })).toBe(message);
  expect(failureSentence({ message, kind: { type: 'of_tomorrow' } as unknown as FailureKind })).toBe(message);
});

test('a hub is named, with the time after which it can be asked again', () => {
  const [, kind] = kinds.too_many_requests;
  expect(failureSentence({ message: '', kind })).toBe(
    'hub.example allows no more requests for now: try again in 5 min.',
  );
});

test('models are called as everywhere else', () => {
  knownNames.receive([
    { name: model, alias: null },
    { name: 'o/other', alias: 'Writer' },
  ]);
  callModels((name) => knownNames.of(name));
  const [, , kind, , , texts] = kinds.not_enough_memory;
  const [unknown] = kinds.not_on_hub;
  expect(failureSentence({ message: '', kind: unknown })).toContain(`There is no model ${model} on the hub`);
  expect(failureSentence({ message: '', kind: texts })).toBe(
    'Reading several texts at once needs 9 GB of memory, and 3 GB of the 12 GB for models are free: choose a smaller model, or ask about shorter texts.',
  );
  expect(failureSentence({ message: '', kind })).toBe(
    'Qwen3 4B needs 9 GB of memory, and 3 GB of the 12 GB for models are free: wait until “Writer” is no longer in use, or choose a smaller model.',
  );
});
