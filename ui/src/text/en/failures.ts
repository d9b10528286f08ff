// What can go wrong, in words.
import type { Failure, FailureKind, MemoryUser, NoticeKind, UnexpectedQuit } from '../../platform/wire';
import { rangeOf } from '../../settings/range';
import { f, tokens } from './formats';

type Of<Type extends FailureKind['type']> = Extract<FailureKind, { type: Type }>;
/** A sentence for each kind. */
export type FailureWords = { [Type in FailureKind['type']]: (kind: Of<Type>) => string };

const gone: Record<Of<'gone'>['what'], string> = {
  chat: 'This chat no longer exists.',
  message: 'This message no longer exists.',
  deletion: 'These messages can no longer be brought back.',
  document: 'This document no longer exists.',
  starting_point: 'This starting point no longer exists.',
  folder: 'This folder no longer exists.',
  preset: 'This preset no longer exists.',
  persona: 'This persona no longer exists.',
  key: 'This key no longer exists.',
  job: 'This question, or this row of it, no longer exists.',
};

/** A sentence, and behind it the one of the system, where that is known. The system's has brackets of its own. */
export function withDetail(sentence: string, detail: string | null): string {
  return detail === null ? sentence : `${sentence} ${detail}`;
}

function memoryUser(what: MemoryUser): string {
  if (what === 'answer') return 'The answer';
  return what === 'texts' ? 'Reading several texts at once' : what.model;
}

const remedies = {
  answer: 'choose a smaller model, or start a shorter chat',
  texts: 'choose a smaller model, or ask about shorter texts',
};

function memoryRemedy({ what, in_use, pinned }: Of<'not_enough_memory'>): string {
  const wait = in_use.length > 0 ? [`wait until ${f.names(in_use)} is no longer in use`] : [];
  const unpin = pinned.length > 0 ? [`unpin ${f.names(pinned)}`] : [];
  const other = typeof what === 'string' ? remedies[what] : 'choose a smaller model';
  return [...wait, ...unpin, other].join(', or ');
}

export const failures: FailureWords = {
  no_model: () => 'There is no model to answer with: choose one first.',
  not_loaded: (kind) => `${kind.model} is not loaded: load it first.`,
  not_enough_memory: (kind) =>
    `${memoryUser(kind.what)} needs ${f.bytes(kind.needed_bytes)} of memory, and ${f.bytes(kind.free_bytes)} of the ${f.bytes(kind.limit_bytes)} for models are free: ${memoryRemedy(kind)}.`,
  load_cancelled: (kind) => `Loading ${kind.model} was cancelled.`,
  context_full: (kind) =>
    `With this question there are ${tokens(kind.tokens)} to read, and the model reads ${f.count(kind.context_length)} at most: shorten the question, start a new chat, or choose a model with a longer context.`,
  interrupted: () => 'The answer was interrupted because another answer failed: ask again.',
  engine_fault: () => 'A fault in Cairn stopped the model. Load it again.',
  closing: () => 'Cairn is closing.',
  offline: (kind) => `${kind.host} cannot be reached: check the connection, then try again. ${kind.detail}`,
  too_many_requests: (kind) =>
    `${kind.host} allows no more requests for now: try again in ${f.timeLeft(kind.seconds)}.`,
  disk_full: () => 'The disk is full: make room on it, then try again.',
  no_room: (kind) =>
    `There isn’t enough room in ${f.quote(kind.folder)}: ${f.bytes(kind.needed_bytes)} are needed, and ${f.bytes(kind.free_bytes)} are free. Make room on that disk, then try again.`,
  not_writable: (kind) =>
    withDetail(
      `${f.quote(kind.path)} cannot be written: check that its folder exists, belongs to you and has room.`,
      kind.detail,
    ),
  not_readable: (kind) => `${f.quote(kind.name)} cannot be read: check that it still exists and belongs to you.`,
  no_chats: (kind) =>
    `${f.quote(kind.name)} has no chats that Cairn can read: it reads its own files, and the exports of ChatGPT (conversations.json), Open WebUI and ShareGPT.`,
  still_answering: () => 'This chat is still being answered: wait, or stop the answer first.',
  gone: (kind) => gone[kind.what],
  name_taken: (kind) => `The name ${f.quote(kind.name)} is taken: choose another.`,
  no_name: () => 'A name cannot be empty.',
  empty_message: () => 'A message cannot be empty.',
  nothing_saved: () => 'Nothing of this chat is saved yet: ask something first.',
  fault: () => 'A fault in Cairn ended this. Try again; if it happens again, quit Cairn and start it anew.',
  database: (kind) => kind.detail,
  engine: (kind) => kind.detail,
  no_device: (kind) => kind.detail,
  declined: () => 'Nothing was changed.',
  only_in_app: (kind) =>
    kind.variable === null
      ? 'This can only be changed in the app, not in a browser.'
      : `This can only be changed in the app, not in a browser. You can also set ${kind.variable} before you start \`cairn serve\`.`,
  load_failed: (kind) => `${kind.model} could not be loaded. ${kind.detail}`,
  model_unusable: (kind) => `${kind.model} cannot be used. ${kind.detail}`,
  model_set_aside: (kind) => `${kind.model} is set aside because Cairn quit unexpectedly twice while using it.`,
  other_model: (kind) =>
    kind.model === null
      ? 'This chat begins with the context of another model: choose that model to go on.'
      : `This chat begins with a context of ${kind.model}: choose that model to go on.`,
  beginning_lost: () =>
    'This chat begins with a file that was imported without its tokens and is no longer saved: import the file again.',
  no_such_model: (kind) => `There is no model ${kind.model} here: download or import it first.`,
  model_exists: (kind) => `${f.quote(kind.path)} exists already: choose another name, or delete it first.`,
  bad_model_name: (kind) =>
    `A model cannot be named ${f.quote(kind.name)}: use a plain name without slashes that does not begin with a dot.`,
  link_out: (kind) =>
    `${f.quote(kind.path)} is a link to a file outside of the model’s folder: replace it with that file to import the model.`,
  read_only_model: (kind) =>
    `Cairn only reads ${f.quote(kind.path)}: delete ${kind.model} with the program that put it there.`,
  no_model_file: (kind) => `${f.quote(kind.name)} is neither a GGUF file nor a model’s folder: choose another.`,
  bad_gguf: (kind) => kind.detail,
  not_deleted: (kind) => `${f.quote(kind.path)} could not be deleted. ${kind.detail}`,
  not_copied: (kind) => `The model could not be copied to ${f.quote(kind.path)}. ${kind.detail}`,
  incomplete_model: (kind) => `${f.quote(kind.path)} is not a whole model: download or import it again. ${kind.detail}`,
  unreadable_model: (kind) =>
    `${f.quote(kind.path)} cannot be opened now: check that you may read it and that its disk is connected, then try again. ${kind.detail}`,
  import_cancelled: () => 'The import was cancelled: choose the file again.',
  another_import: () => 'Another model is being imported: wait, or cancel that import.',
  downloading: (kind) => `${kind.model} is being downloaded: wait, or end that download first.`,
  not_downloading: (kind) => `${kind.model} is not being downloaded.`,
  not_a_folder: (kind) => `${f.quote(kind.path)} is not a folder of this computer.`,
  model_deleted: (kind) => `${kind.model} can no longer be brought back: its files are deleted.`,
  versions_deleted: (kind) => `The older versions of ${kind.model} can no longer be brought back.`,
  token_from_environment: () =>
    'The access token is set by the environment (HF_TOKEN, or Hugging Face’s own file): change it there.',
  token_not_changed: (kind) => `The access token is as it was. ${kind.detail}`,
  no_model_folder: () => 'Models cannot be downloaded: the folder for them is not known. Set HF_HOME.',
  bad_repo: (kind) => `${f.quote(kind.name)} is not the name of a model on the hub: write OWNER/NAME, as on its page.`,
  bad_revision: (kind) => `${f.quote(kind.revision)} is not a revision: write a branch, a tag or a commit.`,
  bad_endpoint: (kind) => `${f.quote(kind.endpoint)} cannot be the hub’s address. ${kind.detail}`,
  bad_proxy: (kind) => `This cannot be a proxy’s address. ${kind.detail}`,
  bad_token: () => 'The access token is not one line of plain characters: copy it again from the hub.',
  no_tls: (kind) => `Secure connections cannot be set up. ${kind.detail}`,
  stalled: (kind) => `${kind.host} stopped sending: try again to continue where it stopped.`,
  hub_failed: (kind) => `${kind.host} answers with error ${kind.status}: try again later.`,
  unexpected_answer: (kind) =>
    `${kind.host} gave an answer that cannot be right, and nothing of it was kept. ${kind.detail}`,
  not_on_hub: (kind) => `There is no model ${kind.model} on the hub, or it is private: check the name or the token.`,
  no_revision: (kind) => `${kind.model} has no revision ${f.quote(kind.revision)}: choose one that its page lists.`,
  gated: (kind) =>
    `${kind.model} is given to those who accept its terms: accept them at ${kind.page}, and add an access token of that account.`,
  unauthorized: (kind) =>
    `${kind.model} is private, or there is no such model: ${kind.has_token ? 'the access token is not valid for it' : 'add an access token if you may read it'}.`,
  forbidden: (kind) => `The hub refuses access to ${kind.model}: check what the access token allows.`,
  hostile_listing: (kind) => `The list of files of ${kind.model} is refused. ${kind.detail}`,
  no_weights: (kind) =>
    `${kind.model} has no model*.safetensors files: Cairn reads no pickle files; look for another version of the model.`,
  changed_on_hub: (kind) =>
    `${f.quote(kind.file)} of ${kind.model} changed on the hub during the download: start it again.`,
  damaged_file: (kind) =>
    `${f.quote(kind.file)} of ${kind.model} arrived damaged twice and was not kept: try again later.`,
  name_too_long: (kind) => `A name is one line of at most ${f.plural(kind.most, 'character', 'characters')}.`,
  too_many_documents: (kind) => `There can be ${f.plural(kind.most, 'document', 'documents')} at most: attach fewer.`,
  empty_document: (kind) => `${f.quote(kind.name)} is empty: there is nothing to read in it.`,
  document_too_long: (kind) =>
    `${f.quote(kind.name)} has ${f.bytes(kind.bytes)} of text, and a document can have ${f.bytes(kind.most_bytes)} at most: attach a part of it.`,
  cannot_go_on: () => 'This answer cannot go on: have it written again.',
  nothing_to_answer: () => 'There is no message to answer yet.',
  not_your_message: () => 'Only a message of yours can be edited.',
  answer_unsaved: () =>
    'The last answer is still waiting to be saved: make room on the disk or make the data folder writable.',
  summary_failed: (kind) =>
    `The summary of the earlier messages could not be written: choose to forget them instead. ${kind.detail}`,
  has_starting_point: () => 'This chat begins with a starting point, so it has no system prompt of its own.',
  only_in_memory: (kind) =>
    kind.detail === null
      ? 'This would only last until Cairn closes, because the disk limit for saved context is 0, as it is by default on a nearly full disk: raise it in Settings, under Storage.'
      : `This would only last until Cairn closes. ${kind.detail}`,
  cache_off: (kind) => `No context is saved in this run; what was saved before stays. ${kind.detail}`,
  other_answer_stopping: () => 'The other answer has not stopped yet: choose again in a moment.',
  private_chat: () => 'Nothing of a private chat is saved.',
  empty_preset: () => 'A preset needs at least one value: change one for this chat first.',
  setting_refused: (kind) => {
    const range = rangeOf(kind.key);
    return range ? `Only values from ${f.number(range[0])} to ${f.number(range[1])} are allowed here.` : kind.detail;
  },
  context_too_long: (kind) =>
    `The context length of ${kind.model} can be at most ${tokens(kind.most)}: it cannot read more.`,
  kv_not_quantizable: (kind) => `The keys and values of ${kind.model} cannot be quantized: leave them exact.`,
  needs_exact_context: (kind) =>
    `A long prompt of ${kind.model} can be shortened only while its context is kept exact: choose one of the two.`,
  draft_needs_all: (kind) => `With a draft model, ${kind.model} needs all of a long prompt: choose one of the two.`,
  alias_spaces: () => 'An alias cannot begin or end with a space.',
  alias_taken: (kind) => `${f.quote(kind.name)} already names the model ${kind.model}: choose another alias.`,
  own_draft: () => 'A model cannot be its own draft model: choose a smaller one.',
  draft_differs: (kind) =>
    `${kind.draft} cannot draft for ${kind.model}, because it has another tokenizer: choose a smaller model of the same family.`,
  empty_question: () => 'The question is empty: write what is to be answered.',
  bad_placeholder: (kind) =>
    `${kind.word} stands for nothing: write ${kind.meant} where the text goes, or leave it out.`,
  empty_option: () => 'An option has no name.',
  option_count: (kind) => `There must be from 2 to ${f.count(kind.most)} options, not ${f.count(kind.count)}.`,
  option_twice: (kind) => `${f.quote(kind.label)} is there twice.`,
  too_few_checked: (kind) =>
    `Check at least ${f.count(kind.least)} answered rows first: ${f.count(kind.count)} are checked.`,
  no_texts: () => 'There is no text in it.',
  too_many_texts: (kind) => `It has more than ${f.plural(kind.most, 'row', 'rows')}.`,
  bad_line: (kind) => `Line ${f.count(kind.line)} is not ${kind.form}. ${kind.detail}`,
  no_column: (kind) => `There is no column ${f.quote(kind.column)} in line 1: it has ${f.names(kind.columns)}.`,
  no_text_in_line: (kind) =>
    `Line ${f.count(kind.line)} has no field “text”, and not exactly one other field that is a text.`,
  not_json: (kind) =>
    `${f.quote(kind.name)} is no file of chats: it is not valid JSON (line ${f.count(kind.line)}, column ${f.count(kind.column)}).`,
  archive_file: (kind) =>
    `${f.quote(kind.name)} is an archive: unpack it, and choose the file conversations.json in it.`,
  newer_file: (kind) => `${f.quote(kind.name)} was written by a newer version of Cairn: update Cairn to import it.`,
  upload_too_large: (kind) => `A file of more than ${f.bytes(kind.most_bytes)} cannot be imported.`,
};

/** What failed without a kind: what only a program can ask for, or a newer core tells. */
export const failedOtherwise = (message: string): string => message;

/** A notice whose failure is a sentence already. */
export type SaidNotice<Kind = Exclude<NoticeKind, { type: 'failed' }>> = Kind extends { why: Failure }
  ? Omit<Kind, 'why'> & { why: string }
  : Kind;
/** A sentence for each kind of notice. */
export type NoticeWords = {
  [Type in SaidNotice['type']]: (kind: Extract<SaidNotice, { type: Type }>) => string;
};

/** Work in progress when Cairn quit. */
function whenQuit({ during, model, job }: UnexpectedQuit): string {
  const suffix = model === null ? '' : ` with ${model}`;
  const whose = model ?? 'a model';
  switch (during) {
    case 'loading':
      return ` while loading ${whose}`;
    case 'importing_model':
      return ' while importing a model';
    case 'importing_context':
      return ' while importing saved context';
    case 'answering':
      return ` while answering${suffix}`;
    case 'comparing':
      return ` while answering a comparison${suffix}`;
    case 'program':
      return ` while answering a program${suffix}`;
    case 'job':
      return ` while answering batch questions${job === null ? '' : ` ${f.quote(job)}`}${suffix}`;
    case 'probabilities':
      return ` while computing probabilities${suffix}`;
    case 'reading_ahead':
      return ` while reading documents${suffix}`;
    case 'title':
      return ` while writing a chat’s title${suffix}`;
    case 'counting':
      return ` while counting a chat’s tokens${suffix}`;
    case 'measuring':
      return ` while measuring ${whose}`;
    default:
      return '';
  }
}

/** The consequence of the quit, or the work that is not lost. */
function afterQuit({ during, model, job, conversation_id, is_set_aside }: UnexpectedQuit): string {
  if (is_set_aside) {
    if (job !== null) return ', so they are paused';
    return model === null ? '' : `, so ${model} isn’t used until you say so`;
  }
  if (during === 'job' && job !== null) return '; its answers are saved';
  const isChat = during === 'answering' || during === 'comparing';
  return isChat && conversation_id !== null ? '; your chat is saved' : '';
}

export const notices: NoticeWords = {
  answer_kept: (kind) => `The answer is not saved yet; Cairn keeps it in memory and tries again. ${kind.why}`,
  answer_not_saving: (kind) =>
    `The answer continues, but is not being saved; Cairn tries again when it is finished. ${kind.why}`,
  answer_saved: () => 'The answer is saved now.',
  job_not_saved: (kind) => `What became of a question was not saved. ${kind.why}`,
  update_unused: (kind) => `The newer version of ${kind.model} is not used. ${kind.why}`,
  draft_unused: (kind) => `${kind.model} answers without its draft model ${kind.draft}. ${kind.why}`,
  draft_stays: (kind) => `The draft model of ${kind.model} stays in memory. ${kind.why}`,
  not_reloaded: (kind) =>
    kind.is_in_memory
      ? `${kind.model} could not be loaded with its new setting. It goes on with the old one, which is set again. ${kind.why}`
      : `${kind.model} could not be loaded with its new setting and is no longer in memory. Load it again; if that fails too, set the old one first. ${kind.why}`,
  quit_unexpectedly: (kind) =>
    `Cairn quit unexpectedly${kind.quit.is_set_aside ? ' again' : ''}${whenQuit(kind.quit)}${afterQuit(kind.quit)}.`,
  started_quietly: () => 'Cairn quit unexpectedly three times in a row, so it hasn’t loaded or resumed anything.',
  recovered: (kind) => {
    const { conversations, total_conversations: total, unreadable_messages: lost, backup } = kind;
    const many = total ?? conversations;
    const count = total === null ? f.count(conversations) : `${f.count(conversations)} of ${f.count(total)}`;
    const from = backup === null ? '' : ` from the backup ${f.quote(backup)}`;
    const rest = lost === 0 ? '' : ` ${f.plural(lost, 'message', 'messages')} could not be read.`;
    return `The database was damaged. ${count} ${many === 1 ? 'chat was' : 'chats were'} recovered${from}.${rest} The damaged file is ${f.quote(kind.damaged)}.`;
  },
  database_saved: (kind) =>
    kind.is_in_place
      ? `The database file was deleted or moved while Cairn was running. All chats are saved in ${f.quote(kind.path)} again, and nothing is lost. If another program removed the file, exclude Cairn’s folder there.`
      : `Another file took the place of the database while Cairn was running. All chats are saved in ${f.quote(kind.path)}, and Cairn continues with that file until you quit. To keep them, quit Cairn and rename it to cairn.db.`,
  database_gone: (kind) =>
    `The database file was deleted or moved, and Cairn can’t save it again yet. Don’t quit Cairn: it keeps trying. ${kind.why}`,
};
