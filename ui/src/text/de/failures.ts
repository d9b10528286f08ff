import type { FailureKind, MemoryUser } from '../../platform/wire';
import type { FailureWords } from '../en/failures';
import { f, tokens } from './formats';

type Of<Type extends FailureKind['type']> = Extract<FailureKind, { type: Type }>;

const gone: Record<Of<'gone'>['what'], string> = {
  chat: 'Diesen Chat gibt es nicht mehr.',
  message: 'Diese Nachricht gibt es nicht mehr.',
  deletion: 'Diese Nachrichten lassen sich nicht mehr zurückholen.',
  document: 'Dieses Dokument gibt es nicht mehr.',
  starting_point: 'Diesen Startpunkt gibt es nicht mehr.',
  folder: 'Diesen Ordner gibt es nicht mehr.',
  preset: 'Diese Vorlage gibt es nicht mehr.',
  persona: 'Diese Persona gibt es nicht mehr.',
  key: 'Diesen Schlüssel gibt es nicht mehr.',
  job: 'Diese Frage oder diese Zeile davon gibt es nicht mehr.',
};

function memoryUser(what: MemoryUser): string {
  if (what === 'answer') return 'Die Antwort';
  return what === 'texts' ? 'Das Lesen mehrerer Texte auf einmal' : what.model;
}

const remedies = {
  answer: 'wähle ein kleineres Modell oder beginne einen kürzeren Chat',
  texts: 'wähle ein kleineres Modell oder frage nach kürzeren Texten',
};

function memoryRemedy({ what, in_use, pinned }: Of<'not_enough_memory'>): string {
  const wait = in_use.length > 0 ? [`warte, bis ${f.names(in_use)} nicht mehr gebraucht wird`] : [];
  const unpin = pinned.length > 0 ? [`hefte ${f.names(pinned)} nicht mehr an`] : [];
  const other = typeof what === 'string' ? remedies[what] : 'wähle ein kleineres Modell';
  const sentence = [...wait, ...unpin, other].join(', oder ');
  return sentence.charAt(0).toUpperCase() + sentence.slice(1);
}

export const failures: FailureWords = {
  no_model: () => 'Es gibt kein Modell, das antworten kann. Wähle zuerst eines.',
  not_loaded: (kind) => `${kind.model} ist nicht geladen. Lade es zuerst.`,
  not_enough_memory: (kind) =>
    `${memoryUser(kind.what)} braucht ${f.bytes(kind.needed_bytes)} Speicher, und von den ${f.bytes(kind.limit_bytes)} für Modelle sind ${f.bytes(kind.free_bytes)} frei. ${memoryRemedy(kind)}.`,
  load_cancelled: (kind) => `Das Laden von ${kind.model} wurde abgebrochen.`,
  context_full: (kind) =>
    `Mit dieser Frage sind ${tokens(kind.tokens)} zu lesen, und das Modell liest höchstens ${f.count(kind.context_length)}. Kürze die Frage, beginne einen neuen Chat, oder wähle ein Modell mit längerem Kontext.`,
  interrupted: () => 'Die Antwort wurde unterbrochen, weil eine andere fehlgeschlagen ist. Frage noch einmal.',
  engine_fault: () => 'Ein Fehler in Cairn hat das Modell angehalten. Lade es neu.',
  closing: () => 'Cairn wird gerade beendet.',
  offline: (kind) =>
    `${kind.host} ist nicht erreichbar (${kind.reason}). Prüfe die Verbindung, und versuche es noch einmal.`,
  too_many_requests: (kind) =>
    `${kind.host} erlaubt gerade keine weiteren Anfragen. Versuche es in ${f.timeLeft(kind.seconds)} noch einmal.`,
  disk_full: () => 'Die Festplatte ist voll. Schaffe Platz, und versuche es noch einmal.',
  no_room_for_model: (kind) =>
    `Für dieses Modell ist in ${f.quote(kind.folder)} kein Platz: Es braucht ${f.bytes(kind.needed_bytes)}, und ${f.bytes(kind.free_bytes)} sind frei. Schaffe dort Platz, und versuche es noch einmal.`,
  not_writable: (kind) =>
    `${f.quote(kind.path)} lässt sich nicht schreiben. Prüfe, ob der Ordner existiert, dir gehört und Platz hat.`,
  not_readable: (kind) =>
    `${f.quote(kind.name)} lässt sich nicht lesen. Prüfe, ob die Datei noch da ist und dir gehört.`,
  no_chats: (kind) =>
    `In ${f.quote(kind.name)} sind keine Chats, die Cairn lesen kann. Es liest eigene Dateien und die Exporte von ChatGPT (conversations.json), Open WebUI und ShareGPT.`,
  still_answering: () => 'In diesem Chat wird noch geantwortet. Warte, oder halte die Antwort erst an.',
  gone: (kind) => gone[kind.what],
  name_taken: (kind) => `Der Name ${f.quote(kind.name)} ist vergeben. Wähle einen anderen.`,
  no_name: () => 'Ein Name darf nicht leer sein.',
  empty_message: () => 'Eine Nachricht darf nicht leer sein.',
  nothing_saved: () => 'Von diesem Chat ist noch nichts gesichert. Frage zuerst etwas.',
};
