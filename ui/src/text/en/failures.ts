// What goes wrong often, in words. What is rarer has the core's own sentence.
import type { FailureKind, MemoryUser } from '../../platform/wire';
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
  offline: (kind) => `${kind.host} cannot be reached (${kind.reason}): check the connection, then try again.`,
  too_many_requests: (kind) =>
    `${kind.host} allows no more requests for now: try again in ${f.timeLeft(kind.seconds)}.`,
  disk_full: () => 'The disk is full: make room on it, then try again.',
  no_room_for_model: (kind) =>
    `There is no room for this model in ${f.quote(kind.folder)}: it needs ${f.bytes(kind.needed_bytes)}, and ${f.bytes(kind.free_bytes)} are free. Make room on that disk, then try again.`,
  not_writable: (kind) =>
    `${f.quote(kind.path)} cannot be written: check that its folder exists, belongs to you and has room.`,
  not_readable: (kind) => `${f.quote(kind.name)} cannot be read: check that it still exists and belongs to you.`,
  no_chats: (kind) =>
    `${f.quote(kind.name)} has no chats that Cairn can read: it reads its own files, and the exports of ChatGPT (conversations.json), Open WebUI and ShareGPT.`,
  still_answering: () => 'This chat is still being answered: wait, or stop the answer first.',
  gone: (kind) => gone[kind.what],
  name_taken: (kind) => `The name ${f.quote(kind.name)} is taken: choose another.`,
  no_name: () => 'A name cannot be empty.',
  empty_message: () => 'A message cannot be empty.',
  nothing_saved: () => 'Nothing of this chat is saved yet: ask something first.',
};
