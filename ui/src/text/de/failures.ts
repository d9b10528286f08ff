import type { FailureKind, MemoryUser, UnexpectedQuit } from '../../platform/wire';
import { rangeOf } from '../../settings/range';
import { withDetail, type FailureWords, type NoticeWords } from '../en/failures';
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
    `${kind.host} ist nicht erreichbar. Prüfe die Verbindung, und versuche es noch einmal. ${kind.detail}`,
  too_many_requests: (kind) =>
    `${kind.host} erlaubt gerade keine weiteren Anfragen. Versuche es in ${f.timeLeft(kind.seconds)} noch einmal.`,
  disk_full: () => 'Die Festplatte ist voll. Schaffe Platz, und versuche es noch einmal.',
  no_room: (kind) =>
    `In ${f.quote(kind.folder)} ist nicht genug Platz: ${f.bytes(kind.needed_bytes)} werden gebraucht, und ${f.bytes(kind.free_bytes)} sind frei. Schaffe dort Platz, und versuche es noch einmal.`,
  not_writable: (kind) =>
    withDetail(
      `${f.quote(kind.path)} lässt sich nicht schreiben. Prüfe, ob der Ordner existiert, dir gehört und Platz hat.`,
      kind.detail,
    ),
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
  fault: () =>
    'Ein Fehler in Cairn hat das beendet. Versuche es noch einmal. Wenn es wieder geschieht, beende Cairn, und starte es neu.',
  database: (kind) => `Die Datenbank hat einen Fehler gemeldet. ${kind.detail}`,
  engine: (kind) => `Das Modell hat einen Fehler gemeldet. ${kind.detail}`,
  no_device: (kind) => `Auf diesem Computer lässt sich kein Modell ausführen. ${kind.detail}`,
  declined: () => 'Es wurde nichts geändert.',
  only_in_app: (kind) =>
    kind.variable === null
      ? 'Das lässt sich nur in der App ändern, nicht im Browser.'
      : `Das lässt sich nur in der App ändern, nicht im Browser. Oder setze ${kind.variable}, bevor du \`cairn serve\` startest.`,
  load_failed: (kind) => `${kind.model} konnte nicht geladen werden. ${kind.detail}`,
  model_unusable: (kind) => `${kind.model} kann nicht benutzt werden. ${kind.detail}`,
  model_set_aside: (kind) =>
    `${kind.model} wird nicht geladen, weil Cairn zweimal unerwartet beendet wurde, während dieses Modell benutzt wurde.`,
  other_model: (kind) =>
    kind.model === null
      ? 'Dieser Chat beginnt mit dem Kontext eines anderen Modells. Wähle jenes, um fortzufahren.'
      : `Dieser Chat beginnt mit einem Kontext von ${kind.model}. Wähle dieses Modell, um fortzufahren.`,
  beginning_lost: () =>
    'Dieser Chat beginnt mit einer Datei, die ohne ihre Tokens importiert wurde und nicht mehr gesichert ist. Importiere die Datei noch einmal.',
  no_such_model: (kind) => `Das Modell ${kind.model} gibt es hier nicht. Lade es herunter, oder importiere es.`,
  model_exists: (kind) => `${f.quote(kind.path)} gibt es schon. Wähle einen anderen Namen, oder lösche es zuerst.`,
  bad_model_name: (kind) =>
    `Ein Modell kann nicht ${f.quote(kind.name)} heißen. Nimm einen einfachen Namen ohne Schrägstriche, der nicht mit einem Punkt beginnt.`,
  link_out: (kind) =>
    `${f.quote(kind.path)} verweist auf eine Datei außerhalb des Modellordners. Ersetze den Verweis durch die Datei, um das Modell zu importieren.`,
  read_only_model: (kind) =>
    `Cairn liest ${f.quote(kind.path)} nur. Lösche ${kind.model} mit dem Programm, von dem es stammt.`,
  no_model_file: (kind) =>
    `${f.quote(kind.name)} ist weder eine GGUF-Datei noch ein Modellordner. Wähle etwas anderes.`,
  bad_gguf: (kind) => `Diese GGUF-Datei kann nicht importiert werden. ${kind.detail}`,
  not_deleted: (kind) => `${f.quote(kind.path)} konnte nicht gelöscht werden. ${kind.detail}`,
  not_copied: (kind) => `Das Modell konnte nicht nach ${f.quote(kind.path)} kopiert werden. ${kind.detail}`,
  incomplete_model: (kind) =>
    `${f.quote(kind.path)} ist kein vollständiges Modell. Lade es noch einmal herunter, oder importiere es noch einmal. ${kind.detail}`,
  unreadable_model: (kind) =>
    `${f.quote(kind.path)} lässt sich zurzeit nicht öffnen. Prüfe, ob du den Ordner lesen darfst und seine Festplatte angeschlossen ist, und versuche es noch einmal. ${kind.detail}`,
  import_cancelled: () => 'Der Import wurde abgebrochen. Wähle die Datei noch einmal.',
  another_import: () => 'Gerade wird ein anderes Modell importiert. Warte, oder brich jenen Import ab.',
  downloading: (kind) => `${kind.model} wird gerade heruntergeladen. Warte, oder beende das zuerst.`,
  not_downloading: (kind) => `${kind.model} wird nicht heruntergeladen.`,
  not_a_folder: (kind) => `${f.quote(kind.path)} ist kein Ordner auf diesem Rechner.`,
  model_deleted: (kind) => `${kind.model} lässt sich nicht mehr zurückholen: Die Dateien sind gelöscht.`,
  versions_deleted: (kind) => `Die älteren Versionen von ${kind.model} lassen sich nicht mehr zurückholen.`,
  token_from_environment: () =>
    'Das Zugriffstoken kommt aus der Umgebung (HF_TOKEN oder die Datei von Hugging Face). Ändere es dort.',
  token_not_changed: (kind) => `Das Zugriffstoken ist, wie es war. ${kind.detail}`,
  no_model_folder: () =>
    'Modelle können nicht heruntergeladen werden, weil der Ordner für sie nicht bekannt ist. Setze HF_HOME.',
  bad_repo: (kind) =>
    `${f.quote(kind.name)} ist kein Name eines Modells auf dem Hub. Schreibe BESITZER/NAME, wie auf seiner Seite.`,
  bad_revision: (kind) =>
    `${f.quote(kind.revision)} ist keine Revision. Schreibe einen Branch, ein Tag oder einen Commit.`,
  bad_endpoint: (kind) => `${f.quote(kind.endpoint)} kann nicht die Adresse des Hubs sein. ${kind.detail}`,
  bad_proxy: (kind) => `Das kann nicht die Adresse eines Proxys sein. ${kind.detail}`,
  bad_token: () => 'Das Zugriffstoken ist nicht eine Zeile aus einfachen Zeichen. Kopiere es noch einmal vom Hub.',
  no_tls: (kind) => `Sichere Verbindungen lassen sich nicht aufbauen. ${kind.detail}`,
  stalled: (kind) => `${kind.host} sendet nichts mehr. Versuche es noch einmal, dann geht es dort weiter.`,
  hub_failed: (kind) => `${kind.host} antwortet mit dem Fehler ${kind.status}. Versuche es später noch einmal.`,
  unexpected_answer: (kind) =>
    `${kind.host} hat etwas geantwortet, das nicht stimmen kann. Nichts davon wurde behalten. ${kind.detail}`,
  not_on_hub: (kind) =>
    `Das Modell ${kind.model} gibt es auf dem Hub nicht, oder es ist privat. Prüfe den Namen oder das Token.`,
  no_revision: (kind) =>
    `${kind.model} hat keine Revision ${f.quote(kind.revision)}. Wähle eine, die auf seiner Seite steht.`,
  gated: (kind) =>
    `${kind.model} bekommt, wer die Bedingungen annimmt. Nimm sie auf ${kind.page} an, und füge ein Zugriffstoken jenes Kontos hinzu.`,
  unauthorized: (kind) =>
    `${kind.model} ist privat, oder es gibt kein solches Modell. ${kind.has_token ? 'Das Zugriffstoken gilt dafür nicht' : 'Füge ein Zugriffstoken hinzu, wenn du es lesen darfst'}.`,
  forbidden: (kind) => `Der Hub verweigert den Zugriff auf ${kind.model}. Prüfe, was das Zugriffstoken erlaubt.`,
  hostile_listing: (kind) => `Die Liste der Dateien von ${kind.model} wird nicht angenommen. ${kind.detail}`,
  no_weights: (kind) =>
    `${kind.model} hat keine Dateien model*.safetensors, und Pickle-Dateien liest Cairn nicht. Suche eine andere Fassung des Modells.`,
  changed_on_hub: (kind) =>
    `${f.quote(kind.file)} von ${kind.model} hat sich während des Herunterladens auf dem Hub geändert. Beginne von vorn.`,
  damaged_file: (kind) =>
    `${f.quote(kind.file)} von ${kind.model} kam zweimal beschädigt an und wurde nicht behalten. Versuche es später noch einmal.`,
  name_too_long: (kind) => `Ein Name ist eine Zeile aus höchstens ${f.plural(kind.most, 'Zeichen', 'Zeichen')}.`,
  too_many_documents: (kind) =>
    `Es können höchstens ${f.plural(kind.most, 'Dokument', 'Dokumente')} sein. Hänge weniger an.`,
  empty_document: (kind) => `${f.quote(kind.name)} ist leer. Darin gibt es nichts zu lesen.`,
  document_too_long: (kind) =>
    `${f.quote(kind.name)} hat ${f.bytes(kind.bytes)} Text, und ein Dokument kann höchstens ${f.bytes(kind.most_bytes)} haben. Hänge einen Teil davon an.`,
  cannot_go_on: () => 'Diese Antwort lässt sich nicht fortsetzen. Lass sie neu schreiben.',
  nothing_to_answer: () => 'Es gibt noch keine Nachricht, die sich beantworten lässt.',
  not_your_message: () => 'Nur deine eigenen Nachrichten lassen sich bearbeiten.',
  answer_unsaved: () =>
    'Die letzte Antwort ist noch nicht gesichert. Schaffe Platz auf der Festplatte, oder mach den Datenordner beschreibbar.',
  summary_failed: (kind) =>
    `Die früheren Nachrichten konnten nicht zusammengefasst werden. Wähle, dass sie vergessen werden. ${kind.detail}`,
  has_starting_point: () => 'Dieser Chat beginnt mit einem Startpunkt und hat deshalb keine eigene Systemanweisung.',
  only_in_memory: (kind) =>
    kind.detail === null
      ? 'Das bliebe nur, bis Cairn beendet wird, denn für gesicherten Kontext ist auf der Festplatte kein Platz vorgesehen, wie es bei einer fast vollen Festplatte üblich ist. Erhöhe die Grenze in den Einstellungen unter „Speicher“.'
      : `Das bliebe nur, bis Cairn beendet wird. ${kind.detail}`,
  cache_off: (kind) =>
    `Bis zum nächsten Start wird kein Kontext gesichert. Was schon gesichert ist, bleibt. ${kind.detail}`,
  other_answer_stopping: () => 'Die andere Antwort hat noch nicht angehalten. Wähle gleich noch einmal.',
  private_chat: () => 'Von einem privaten Chat wird nichts gesichert.',
  empty_preset: () => 'Eine Vorlage braucht mindestens einen Wert. Ändere zuerst einen für diesen Chat.',
  setting_refused: (kind) => {
    const range = rangeOf(kind.key);
    return range
      ? `Hier sind nur Werte von ${f.number(range[0])} bis ${f.number(range[1])} erlaubt.`
      : `Dieser Wert ist hier nicht erlaubt. ${kind.detail}`;
  },
  context_too_long: (kind) =>
    `Der Kontext von ${kind.model} kann höchstens ${tokens(kind.most)} lang sein, denn mehr liest es nicht.`,
  kv_not_quantizable: (kind) =>
    `Die Schlüssel und Werte von ${kind.model} lassen sich nicht quantisieren. Lass sie genau.`,
  needs_exact_context: (kind) =>
    `Eine lange Eingabe für ${kind.model} lässt sich nur kürzen, solange der Kontext genau behalten wird. Wähle eines von beiden.`,
  draft_needs_all: (kind) =>
    `Mit einem Entwurfsmodell braucht ${kind.model} eine lange Eingabe ganz. Wähle eines von beiden.`,
  alias_spaces: () => 'Ein Rufname darf nicht mit einem Leerzeichen beginnen oder enden.',
  alias_taken: (kind) => `${f.quote(kind.name)} heißt schon das Modell ${kind.model}. Wähle einen anderen Namen.`,
  own_draft: () => 'Ein Modell kann nicht sein eigenes Entwurfsmodell sein. Wähle ein kleineres.',
  draft_differs: (kind) =>
    `${kind.draft} kann ${kind.model} nichts vorschlagen, weil es einen anderen Tokenizer hat. Wähle ein kleineres Modell derselben Familie.`,
  empty_question: () => 'Die Frage ist leer. Schreibe, was beantwortet werden soll.',
  bad_placeholder: (kind) =>
    `${kind.word} steht für nichts. Schreibe ${kind.meant} dorthin, wo der Text stehen soll, oder lass es weg.`,
  empty_option: () => 'Eine Möglichkeit hat keinen Namen.',
  option_count: (kind) =>
    `Es müssen zwischen 2 und ${f.count(kind.most)} Möglichkeiten sein, nicht ${f.count(kind.count)}.`,
  option_twice: (kind) => `${f.quote(kind.label)} ist doppelt.`,
  too_few_checked: (kind) =>
    `Prüfe zuerst mindestens ${f.count(kind.least)} beantwortete Zeilen. Geprüft sind ${f.count(kind.count)}.`,
  no_texts: () => 'Darin ist kein Text.',
  too_many_texts: (kind) => `Es sind mehr als ${f.plural(kind.most, 'Zeile', 'Zeilen')}.`,
  bad_line: (kind) => `Zeile ${f.count(kind.line)} ist kein ${kind.form}. ${kind.detail}`,
  no_column: (kind) => `In Zeile 1 gibt es keine Spalte ${f.quote(kind.column)}, aber ${f.names(kind.columns)}.`,
  no_text_in_line: (kind) =>
    `Zeile ${f.count(kind.line)} hat kein Feld „text“ und auch nicht genau ein anderes Feld mit einem Text.`,
  not_json: (kind) =>
    `${f.quote(kind.name)} ist keine Datei mit Chats, denn sie ist kein gültiges JSON (Zeile ${f.count(kind.line)}, Spalte ${f.count(kind.column)}).`,
  archive_file: (kind) =>
    `${f.quote(kind.name)} ist ein Archiv. Entpacke es, und wähle darin die Datei conversations.json.`,
  newer_file: (kind) =>
    `${f.quote(kind.name)} stammt von einer neueren Version von Cairn. Aktualisiere Cairn, um die Datei zu importieren.`,
  upload_too_large: (kind) => `Eine Datei mit mehr als ${f.bytes(kind.most_bytes)} kann nicht importiert werden.`,
};

export const failedOtherwise = (message: string): string => `Das ging nicht. ${message}`;

function whenQuit({ during, model, job }: UnexpectedQuit): string {
  const whose = model ?? 'ein Modell';
  switch (during) {
    case 'loading':
      return `, während ${whose} geladen wurde`;
    case 'importing_model':
      return ', während ein Modell importiert wurde';
    case 'importing_context':
      return ', während gesicherter Kontext importiert wurde';
    case 'answering':
      return `, während ${whose} antwortete`;
    case 'comparing':
      return `, während ${whose} in einem Vergleich antwortete`;
    case 'program':
      return `, während ${whose} einem Programm antwortete`;
    case 'job':
      return `, während ${whose} ${job === null ? 'Fragen zu vielen Texten' : `die Fragen in ${f.quote(job)}`} beantwortete`;
    case 'probabilities':
      return `, während ${whose} Wahrscheinlichkeiten berechnete`;
    case 'reading_ahead':
      return `, während ${whose} Dokumente las`;
    case 'title':
      return `, während ${whose} einen Titel schrieb`;
    case 'counting':
      return `, während ${whose} die Tokens eines Chats zählte`;
    case 'measuring':
      return `, während ${whose} mit dem Original verglichen wurde`;
    default:
      return '';
  }
}

function afterQuit({ during, model, job, conversation_id, is_set_aside }: UnexpectedQuit): string {
  if (is_set_aside) {
    if (job !== null) return '; deshalb sind die Fragen angehalten';
    return model === null ? '' : `; ${model} wird deshalb erst wieder verwendet, wenn du es willst`;
  }
  if (during === 'job' && job !== null) return '; die Antworten sind gesichert';
  const isChat = during === 'answering' || during === 'comparing';
  return isChat && conversation_id !== null ? '; der Chat ist gesichert' : '';
}

export const notices: NoticeWords = {
  answer_kept: (kind) =>
    `Die Antwort ist noch nicht gesichert. Cairn behält sie im Speicher und versucht es wieder. ${kind.why}`,
  answer_not_saving: (kind) =>
    `Die Antwort geht weiter, wird aber gerade nicht gesichert. Cairn versucht es wieder, wenn sie fertig ist. ${kind.why}`,
  answer_saved: () => 'Die Antwort ist jetzt gesichert.',
  job_not_saved: (kind) => `Was aus einer Frage geworden ist, wurde nicht gesichert. ${kind.why}`,
  update_unused: (kind) => `Die neuere Version von ${kind.model} wird nicht benutzt. ${kind.why}`,
  draft_unused: (kind) => `${kind.model} antwortet ohne sein Entwurfsmodell ${kind.draft}. ${kind.why}`,
  draft_stays: (kind) => `Das Entwurfsmodell von ${kind.model} bleibt im Speicher. ${kind.why}`,
  not_reloaded: (kind) =>
    kind.is_in_memory
      ? `${kind.model} ließ sich mit der neuen Einstellung nicht laden. Es bleibt bei der alten, die wieder gesetzt ist. ${kind.why}`
      : `${kind.model} ließ sich mit der neuen Einstellung nicht laden und ist nicht mehr im Speicher. Lade es noch einmal; geht auch das nicht, setze zuerst die alte wieder. ${kind.why}`,
  quit_unexpectedly: (kind) =>
    `Cairn wurde ${kind.quit.is_set_aside ? 'erneut ' : ''}unerwartet beendet${whenQuit(kind.quit)}${afterQuit(kind.quit)}.`,
  started_quietly: () =>
    'Cairn wurde dreimal hintereinander unerwartet beendet; deshalb wurde diesmal nichts geladen und nichts fortgesetzt.',
  recovered: (kind) => {
    const { conversations, total_conversations: total, unreadable_messages: lost, backup } = kind;
    const many = total ?? conversations;
    const count = total === null ? f.count(conversations) : `${f.count(conversations)} von ${f.count(total)}`;
    const from = backup === null ? '' : ` aus der Sicherung ${f.quote(backup)}`;
    const rest = lost === 0 ? '' : ` ${f.plural(lost, 'Nachricht ließ', 'Nachrichten ließen')} sich nicht lesen.`;
    return `Die Datenbank war beschädigt. ${count} ${many === 1 ? 'Chat wurde' : 'Chats wurden'}${from} wiederhergestellt.${rest} Die beschädigte Datei ist ${f.quote(kind.damaged)}.`;
  },
  database_saved: (kind) =>
    kind.is_in_place
      ? `Die Datenbankdatei wurde gelöscht oder verschoben, während Cairn lief. Alle Chats sind wieder in ${f.quote(kind.path)} gesichert, nichts ging verloren. Falls ein anderes Programm die Datei entfernt hat, trage Cairns Ordner dort als Ausnahme ein.`
      : `Eine andere Datei hat die Datenbank ersetzt, während Cairn lief. Alle Chats sind in ${f.quote(kind.path)} gesichert; damit arbeitet Cairn bis zum Beenden weiter. Damit sie erhalten bleiben, beende Cairn, und benenne diese Datei in cairn.db um.`,
  database_gone: (kind) =>
    `Die Datenbankdatei wurde gelöscht oder verschoben, und Cairn konnte sie noch nicht neu anlegen. Beende Cairn nicht, es versucht es weiter. ${kind.why}`,
};
