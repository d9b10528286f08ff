// Chats: the list, the messages, the answers, and what stands in a chat without any.
import type { Catalogue } from '../en';
import { f, machine, tokens } from './formats';

export const welcome: Catalogue['welcome'] = {
  label: 'Willkommen',
  noModels: `Auf diesem ${machine} ist noch kein Modell.`,
  noneLoadable: `Keines der Modelle auf diesem ${machine} kann geladen werden.`,
  showModels: 'Modelle zeigen',
  title: 'Ein Gespräch behält seinen Platz',
  promise:
    'Cairn sichert, was das Modell gelesen hat. Komm zurück, wann du willst: Der Chat geht weiter, ohne dass alles noch einmal gelesen wird.',
  try: 'Zum Ausprobieren',
  examples: [
    'Erkläre in fünf Schritten, wie man ein Steinmännchen baut',
    'Schreibe einen kurzen Brief, der zwei Dachdecker um ein Angebot bittet',
    'Vergleiche SQLite und PostgreSQL für ein kleines Team, als Tabelle',
  ],
};

const several = (count: number) => f.plural(count, 'Chat', 'Chats');
/** A chat by its title, or several by their number. */
const called = (what: string | number) => (typeof what === 'number' ? several(what) : f.quote(what));

export const chats: Catalogue['chats'] = {
  ages: { today: 'Heute', yesterday: 'Gestern', lastWeek: 'Letzte 7 Tage' },
  month: f.month,
  answering: ', antwortet',
  branch: 'Zweig',
  actions: (title) => `Aktionen für ${title}`,
  several,
  deleted: (what) => `${called(what)} gelöscht.`,
  deletedElsewhere: (title) => `${f.quote(title)} wurde in einem anderen Fenster gelöscht.`,
  archive: 'Archivieren',
  archived: (what) => `${called(what)} archiviert.`,
  archiveTitle: (count) => `Archiv (${f.count(count)})`,
  unarchive: 'Aus dem Archiv zurückholen',
  unarchived: (what) => `${called(what)} zurückgeholt.`,
  export: 'Chat exportieren …',
  moveTo: (name) => `In ${name} bewegen`,
  moveToNew: 'In einen neuen Ordner bewegen …',
  moveOut: 'Aus dem Ordner nehmen',
  moved: (what) => `${called(what)} bewegt.`,
  pin: 'Anheften',
  unpin: 'Lösen',
  pinned: 'Angeheftet',
  empty: 'Noch keine Chats',
  label: 'Chats',
  new: 'Neuer Chat',
  titleField: 'Titel',
  untitled: 'Neuer Chat',
};

export const selectedChats: Catalogue['selectedChats'] = {
  archive: (count) => `${f.count(count)} Chats archivieren`,
  count: (count) => (count === 0 ? 'Kein Chat ausgewählt' : `${several(count)} ausgewählt`),
  delete: (count) => `${f.count(count)} Chats löschen`,
  export: (count) => `${f.count(count)} Chats exportieren …`,
  mark: 'Ausgewählt',
  moveOut: (count) => `${f.count(count)} Chats aus ihren Ordnern nehmen`,
  moveTo: (count, name) => `${f.count(count)} Chats in ${name} bewegen`,
  moveToNew: (count) => `${f.count(count)} Chats in einen neuen Ordner bewegen …`,
  unarchive: (count) => `${f.count(count)} Chats aus dem Archiv zurückholen`,
};

export const folders: Catalogue['folders'] = {
  aChatIn: (name) => `Ein Chat in „${name}“`,
  actions: (name) => `Aktionen für den Ordner ${name}`,
  addFiles: 'Dateien hinzufügen …',
  anyModel: 'Das geladene',
  beginning: 'Dateien des Ordners',
  beginsWith: (name) => `Beginnt mit den Dateien von „${name}“`,
  begunWith: 'Beginnt mit Dateien seines Ordners',
  create: 'Anlegen',
  delete: 'Ordner löschen',
  deleted: (name) => `Ordner „${name}“ gelöscht. Seine Chats stehen in der Liste.`,
  edit: 'Ordner bearbeiten …',
  editTitle: 'Ordner bearbeiten',
  empty: 'Noch keine Chats darin',
  files: 'Dateien',
  filesNote:
    'Neue Chats im Ordner beginnen mit diesen Dateien; sie werden für alle nur einmal gelesen. Ein Chat, der schon begonnen hat, behält die Dateien, mit denen er begann.',
  from: (name) => `Vom Ordner „${name}“`,
  label: (name, count) => `Ordner ${name}, ${f.plural(count, 'Chat', 'Chats')}`,
  model: 'Modell',
  newChat: 'Neuer Chat in diesem Ordner',
  newChatIn: (name) => `Neuer Chat in ${name}`,
  newTitle: 'Neuer Ordner',
  read: (count) => `Gelesen (${tokens(count)}). Neue Chats machen hier weiter.`,
  title: 'Ordner',
  unread: 'Noch nicht gelesen. Der erste Chat im Ordner liest sie für alle anderen.',
  withQuestion: 'Sie werden mit der ersten Frage gelesen, einmal für alle Chats des Ordners.',
  note: 'Chats, die du im Ordner beginnst, fangen mit diesem System-Prompt an; er wird für alle nur einmal gelesen. Chats, die du hineinbewegst, behalten ihren.',
};

export const chatFiles: Catalogue['chatFiles'] = {
  all: 'Alle Chats',
  export: 'Exportieren',
  exported: (file) => `Nach ${file} exportiert.`,
  fileName: 'Chats',
  form: 'Form der Datei',
  formats: { json: 'Cairn (JSON)', markdown: 'Markdown', openai: 'Nachrichten (JSONL)' },
  formatNotes: {
    json: 'Alle Versionen und Zweige. Cairn kann sie wieder importieren.',
    markdown: 'Zum Lesen: der sichtbare Zweig, ohne Überlegungen.',
    openai: 'Für andere Programme: je Chat eine Zeile mit Nachrichten, wie OpenAIs API sie nimmt.',
  },
  extended: (chats, messages) =>
    `${f.plural(messages, 'neue Nachricht', 'neue Nachrichten')} in ${f.plural(chats, 'Chat, der schon da war', 'Chats, die schon da waren')}.`,
  here: (count) => (count === 1 ? 'Einer war schon da.' : `${f.count(count)} waren schon da.`),
  imported: (count) => (count === 0 ? 'Keine neuen Chats.' : `${f.plural(count, 'Chat', 'Chats')} importiert.`),
  importing: (file) => `${file} wird importiert …`,
  kept: (count) =>
    `${f.plural(count, 'importierter Chat bleibt', 'importierte Chats bleiben')}: Seitdem wurde darin geschrieben.`,
  none: 'In dieser Datei sind keine Chats.',
  note: 'Die Datei enthält nur Texte. Was das Modell gelesen hat, wird als gesicherter Kontext exportiert.',
  open: 'Öffnen',
  refused: (count, title, number, why) =>
    `${f.plural(count, 'Chat', 'Chats')} nicht importiert. ${title === '' ? `Nummer ${f.count(number)} in der Datei` : `„${title}“`}: ${why}`,
  takeBack: (count) => `${f.plural(count, 'neuen Chat', 'neue Chats')} löschen`,
  title: (name) => `„${name}“ exportieren`,
};

export const privateChat: Catalogue['privateChat'] = {
  label: 'Privat',
  summary: 'Privat: Von diesem Chat wird nichts gesichert.',
  rereadNote:
    'Privat: Von diesem Chat wird nichts gesichert. Jede Nachricht wird neu gelesen, und er verschwindet, wenn Cairn beendet wird.',
  gone: 'Der private Chat ist verschwunden: Cairn wurde inzwischen beendet.',
  title: 'Dieser Chat ist privat',
  promise:
    'Nichts davon wird gesichert: keine Nachricht und nichts, was das Modell liest. Er verschwindet, wenn Cairn beendet wird.',
};

export const chat: Catalogue['chat'] = {
  answer: 'Antwort',
  answerBegun: 'Die Antwort wird geschrieben.',
  answerFinished: (answer) => `Antwort fertig. ${answer}`,
  chooseModel: 'Modell wählen',
  chooseModelToStart: 'Wähle ein Modell, um zu beginnen',
  modelSetAside: (name) => `${name} wird gerade nicht verwendet`,
  writeOnceReady: 'Du kannst schreiben, sobald das Modell da ist',
  copyAnswer: 'Antwort kopieren',
  foldAnswer: 'Weniger zeigen von dieser Antwort',
  unfoldAnswer: 'Alles zeigen von dieser Antwort',
  copyMessage: 'Nachricht kopieren',
  jumpToEnd: 'Zum Ende springen',
  loadFailed: (model, reason) => `${model} konnte nicht geladen werden: ${reason}`,
  message: 'Nachricht',
  messages: 'Nachrichten',
  regenerate: 'Neu schreiben',
  send: 'Senden',
  sendTitle: 'Senden (Eingabetaste)',
  stop: 'Anhalten',
  stopTitle: 'Anhalten (Esc)',
  showInspector: 'Informationen einblenden',
  hideInspector: 'Informationen ausblenden',
  inspector: 'Dieser Chat',
  write: 'Nachricht schreiben',
  writeNext: 'Nächste Nachricht schreiben',
  writing: 'Schreibt',
  you: 'Du',
};

export const versions: Catalogue['versions'] = {
  again: 'Beantworten',
  branch: 'In einen neuen Chat verzweigen',
  attach: 'Dateien an diese Nachricht anhängen',
  cancel: 'Abbrechen',
  continue: 'Fortsetzen',
  delete: 'Diese Nachricht löschen',
  deleteWithFollowing: 'Diese und alle folgenden löschen',
  deleted: (count) => `${f.plural(count, 'Nachricht', 'Nachrichten')} gelöscht.`,
  edit: 'Bearbeiten',
  editNote: 'Die frühere Fassung bleibt.',
  field: 'Deine Nachricht',
  label: (number, count) => `Fassung ${number} von ${count}`,
  loaded: (model) => `${model} (geladen)`,
  more: 'Mehr',
  next: 'Nächste Fassung',
  oneMoment: 'Einen Moment …',
  previous: 'Vorige Fassung',
  send: 'Senden',
  unanswered: 'Diese Nachricht hat keine Antwort.',
  whileAnswering: 'Nicht, während dieser Chat beantwortet wird',
  withModel: 'Von einem anderen Modell beantworten lassen',
  writtenBy: (model) => `Geschrieben von ${model}`,
};

export const find: Catalogue['find'] = {
  close: 'Schließen (Esc)',
  field: 'In diesem Chat suchen',
  label: 'Suchen',
  next: 'Weiter (Eingabetaste)',
  none: 'Nichts gefunden',
  of: (index, count) => `${f.count(index)} von ${f.count(count)}`,
  previous: 'Zurück (Umschalt+Eingabetaste)',
};

export const reasoning: Catalogue['reasoning'] = {
  answerNow: 'Jetzt antworten',
  answerNowNote: 'Beendet das Nachdenken und beginnt die Antwort. Der Gedankengang bleibt erhalten.',
  copy: 'Gedankengang kopieren',
  thinking: (milliseconds) => `Denkt nach … ${f.estimate(milliseconds)}`,
  thought: (milliseconds) => `${f.estimate(milliseconds)} nachgedacht`,
};

export const toolCall: Catalogue['toolCall'] = {
  copy: 'Werkzeugaufruf kopieren',
  label: (name) => `Werkzeugaufruf: ${name}`,
  nameless: 'ohne Namen',
  outcomes: {
    complete: 'Cairn zeigt Werkzeugaufrufe und führt keine aus.',
    unfinished:
      'Unfertig: Die Antwort endete in diesem Werkzeugaufruf. Cairn zeigt Werkzeugaufrufe und führt keine aus.',
    malformed:
      'Fehlerhaft: Das Modell hat sich nicht an seine Form für Werkzeugaufrufe gehalten. Cairn zeigt Werkzeugaufrufe und führt keine aus.',
  },
  writing: 'Wird geschrieben',
};

export const held: Catalogue['held'] = {
  question: 'Diese Antwort wiederholt sich.',
  stop: 'Anhalten',
  goOn: 'Weiterschreiben',
};

export const queue: Catalogue['queue'] = {
  edit: 'Diese Nachricht bearbeiten',
  label: 'Wartende Nachrichten',
  remove: 'Diese Nachricht entfernen',
  send: 'Jetzt senden',
  stays: (count) => `${f.plural(count, 'Nachricht wartet', 'Nachrichten warten')} darauf, gesendet zu werden`,
  waiting: (count) =>
    count === 1
      ? 'Folgt, wenn die Antwort fertig ist'
      : `${f.count(count)} Nachrichten folgen nacheinander, wenn die Antwort fertig ist`,
};

export const endings: Catalogue['endings'] = {
  askWithout: (count) => (count === 1 ? 'Ohne das Dokument fragen' : 'Ohne die Dokumente fragen'),
  continueAdvice: 'Setze sie fort, oder lass sie neu schreiben.',
  context: 'Diese Antwort endete, weil der Kontext des Modells voll ist.',
  contextAdvice: 'Beginne einen neuen Chat, oder erhöhe die Kontextlänge in den Einstellungen des Modells.',
  failed: 'Diese Antwort konnte nicht geschrieben werden.',
  failedAdvice: 'Lass sie neu schreiben, um es noch einmal zu versuchen.',
  interrupted: 'Cairn wurde beendet, bevor diese Antwort fertig war.',
  interruptedAdvice: 'Lass sie neu schreiben.',
  length: (count) => `Diese Antwort hat die Grenze von ${tokens(count)} erreicht.`,
  lengthAdvice: 'Bitte das Modell fortzufahren, oder erhöhe die größte Antwortlänge in den Einstellungen.',
  modelAdvice: 'Lade das Modell noch einmal herunter, importiere es noch einmal, oder wähle ein anderes.',
  stopped: 'Du hast diese Antwort angehalten.',
  stoppedAdvice: 'Lass sie neu schreiben, wenn du sie ganz willst.',
  tooLong: (kind) =>
    `Mit dieser Frage waren ${tokens(kind.tokens)} zu lesen, und das Modell liest höchstens ${f.count(kind.context_length)}.`,
  tooLongAdvice: (count) =>
    `Was du als Nächstes fragst, wird ohne diese Frage und ${count === 1 ? 'ihr Dokument' : 'ihre Dokumente'} gelesen: Hänge weniger an, oder wähle ein Modell mit längerem Kontext.`,
};

export const reading: Catalogue['reading'] = {
  alreadySaved: (count) => `${f.count(count)} schon gesichert`,
  label: 'Liest',
  loadingModel: 'Modell wird geladen …',
  preparing: 'Wird vorbereitet …',
  progress: (processed, total) => `Liest ${f.count(processed)} von ${tokens(total)}`,
};

export const stats: Catalogue['stats'] = {
  answer: 'Antwort',
  answerRate: (count, perSecond) => `${tokens(count)} mit ${f.rate(perSecond)} Tok/s`,
  appMemory: 'Arbeitsspeicher der App',
  continued: 'Fortgesetzt',
  continuedSaving: (milliseconds) => `Fortgesetzt, ${f.estimate(milliseconds)} gespart`,
  firstToken: 'Erstes Token',
  firstTokenAfter: (milliseconds) => `nach ${f.milliseconds(milliseconds)}`,
  firstTokenAfterWait: (milliseconds, waitMs) =>
    `nach ${f.milliseconds(milliseconds)}, davon ${f.milliseconds(waitMs)} Warten auf andere Antworten`,
  guessed: (accepted, proposed, checked) =>
    `${f.count(accepted)} von ${tokens(proposed)} übernommen, ${f.count(checked)} in Schritten zu mehreren geprüft`,
  guesses: 'Vorausgeraten',
  memory: (now, most) => `jetzt ${f.bytes(now)}, höchstens ${f.bytes(most)}`,
  mlxMemory: 'Arbeitsspeicher von MLX',
  model: 'Modell',
  prompt: 'Prompt',
  promptRead: (read, saved) => `${tokens(read)} gelesen, ${f.count(saved)} aus gesichertem Kontext`,
  promptContinued: (read, before) => `${tokens(read)} gelesen, ${f.count(before)} schon vorher`,
  readAhead: 'Schon beim Tippen gelesen',
  sources: {
    in_memory: 'Noch im Arbeitsspeicher',
    restored: 'Aus gesichertem Kontext',
    shared: 'Mit anderen Chats geteilt',
    read_ahead: 'Beim Tippen gelesen',
  },
  read: (count) => `${tokens(count)} gelesen`,
  readAndKept: (read, kept) => `${tokens(read)} gelesen, ${f.count(kept)} behalten`,
  firstReading: 'Von diesem Modell zum ersten Mal gelesen',
  withKept: (words, kept) => `${words}, ${f.count(kept)} behalten`,
  readAgain: (count, reason) => `${tokens(count)} noch einmal gelesen: ${reason}`,
  readingSpeed: 'Lesegeschwindigkeit',
  rate: (perSecond) => `${f.rate(perSecond)} Tok/s`,
  stoppedBeforeFirst: 'vor dem ersten Token angehalten',
};

export const compare: Catalogue['compare'] = {
  title: 'Vergleichen',
  open: 'Vergleichen…',
  question: 'Deine Frage',
  placeholder: 'Was sollen beide beantworten?',
  note: 'Beide Antworten bleiben als Fassungen im Chat.',
  same: 'Wähle für eine der Antworten ein anderes Modell oder eine andere Einstellung.',
  stays: 'Womit du auch weitermachst, die andere bleibt als Fassung.',
  start: 'Beide fragen',
  next: 'Nächste Frage an beide',
  again: 'Noch einmal vergleichen',
  close: 'Schließen',
  model: 'Modell',
  temperature: 'Temperatur',
  seed: 'Startwert',
  asInChat: 'Wie in diesem Chat',
  answers: ['Erste Antwort', 'Zweite Antwort'],
  column: (number, name) => `Antwort ${number}, ${name}`,
  textOf: (name) => `Text der Antwort von ${name}`,
  stop: 'Anhalten',
  stopNamed: (name) => `Antwort von ${name} anhalten`,
  choose: 'Hiermit weitermachen',
  chooseNamed: (name) => `Hiermit weitermachen, von ${name}`,
  copyNamed: (name) => `Antwort von ${name} kopieren`,
  waits:
    'Beide Modelle passen nicht zusammen in den Arbeitsspeicher. Dieses beginnt, wenn die andere Antwort fertig ist.',
  withTemperature: (value) => `Temperatur ${f.number(value)}`,
  withSeed: (value) => `Startwert ${value}`,
  withThinking: (level) => `Nachdenken: ${level.toLowerCase()}`,
  firstToken: 'Erstes Token',
  after: (milliseconds) => `nach ${f.milliseconds(milliseconds)}`,
  writing: 'Schreibt mit',
  rate: (perSecond) => `${f.rate(perSecond)} Tok/s`,
  length: 'Länge',
};

export const misses: Catalogue['misses'] = {
  causes: {
    system_prompt_changed: () => 'Der System-Prompt ist ein anderer',
    template_changed: () => 'Die Chat-Vorlage des Modells ist eine andere',
    message_changed: () => 'Eine frühere Nachricht ist eine andere',
    oldest_forgotten: () => 'die ältesten Nachrichten werden nicht mehr gelesen',
    other_model: (model) =>
      model === '' ? 'Vorher hat es ein anderes Modell gelesen' : `Vorher hat es ${model} gelesen`,
    other_revision: () => 'Die Dateien des Modells haben sich geändert',
    other_kv_format: () => 'Sein Gedächtnis war vorher anders gespeichert',
    imported_again: () => 'Sein Startpunkt wurde noch einmal importiert',
    disk_limit: () => 'Gelöscht, um die Grenze auf der Festplatte einzuhalten',
    memory_limit: () => 'Verworfen, um die Grenze im Arbeitsspeicher einzuhalten',
    deleted: () => 'Sein gesicherter Kontext wurde gelöscht',
    cleared: () => 'Aller gesicherte Kontext wurde gelöscht',
    file_missing: () => 'Eine Datei seines gesicherten Kontexts fehlt',
    unreadable: (why) => `Eine Datei seines gesicherten Kontexts ist nicht lesbar (${why})`,
    damaged: () => 'Eine Datei seines gesicherten Kontexts war beschädigt',
    not_restorable: (why) => `Sein gesicherter Kontext war nicht zu gebrauchen (${why})`,
    removed_by_another_program: () => 'Ein anderes Programm hat seinen gesicherten Kontext entfernt',
    not_written: (why) => `Er ließ sich nicht sichern (${why})`,
    only_in_memory: () => 'Er war nur im Arbeitsspeicher gesichert',
    earlier_version: () => 'Eine frühere Version von Cairn hat ihn gesichert',
    not_stored: () => 'Dieser Teil war noch nicht gesichert',
    other: (what) => (what === '' ? 'Aus einem anderen Grund' : what),
  },
  remedies: {
    pin: {
      note: 'Was ein angehefteter Chat gesichert hat, wird nie gelöscht, um Platz zu schaffen.',
      action: 'Diesen Chat anheften',
      done: 'Dieser Chat ist angeheftet: Was er gesichert hat, bleibt.',
    },
    diskLimit: (bytes) => ({
      note: 'Auf der Festplatte wird nichts gesichert, weil die Grenze dafür 0 ist, wie es auf einer fast vollen Festplatte voreingestellt ist.',
      action: `Bis zu ${f.bytes(bytes)} auf der Festplatte sichern`,
      done: `Gesicherter Kontext darf ab jetzt ${f.bytes(bytes)} auf der Festplatte belegen.`,
    }),
    memoryLimit: (bytes) => ({
      note: 'Mit mehr Platz bleiben mehr Chats bereit.',
      action: `Die Grenze im Arbeitsspeicher auf ${f.bytes(bytes)} erhöhen`,
      done: `Gesicherter Kontext darf ab jetzt ${f.bytes(bytes)} Arbeitsspeicher belegen.`,
    }),
    systemPrompt: {
      note: 'Mit dem System-Prompt von vorher geht der Chat von dem aus weiter, was damals gesichert wurde.',
      action: 'Änderung des System-Prompts zurücknehmen',
      done: 'Der System-Prompt ist wieder wie vorher.',
    },
    model: (model) => ({
      note: `${model} macht weiter, wo es war.`,
      action: `Mit ${model} weitermachen`,
      done: `Ab jetzt antwortet ${model}.`,
    }),
    kvBits: (model) => ({
      note: 'Was vorher gespeichert wurde, wird so wieder benutzt, wie es gespeichert ist.',
      action: 'Speichern wie vorher',
      done: `${model} speichert sein Gedächtnis wie vorher.`,
    }),
  },
};

export const systemPrompt: Catalogue['systemPrompt'] = {
  example: 'Zum Beispiel: Antworte in kurzen Sätzen.',
  fixed: 'Er kommt vom Startpunkt und kann hier nicht geändert werden.',
  note: 'Das Modell liest ihn vor allem anderen. Wenn du ihn änderst, wird der Chat einmal neu gelesen.',
  none: 'Keiner',
  own: 'Vom Modell, solange dieser Chat keinen eigenen hat',
  unknown: 'Keiner festgelegt. Vielleicht hat das Modell einen eigenen.',
  title: 'System-Prompt',
  titleSet: 'System-Prompt (gesetzt)',
};

export const content: Catalogue['content'] = {
  code: 'Code',
  codeIn: (language) => `Code, ${language}`,
  copyCode: 'Code kopieren',
  done: 'Erledigt',
  footnote: (label) => `Fußnote ${label}`,
  imageNotLoaded: 'Bild, nicht geladen: ',
  imageTitle: (address) => `Dieses Bild wird nicht geladen: ${address}`,
  linkNotOpened: (target) => `Wird nicht geöffnet: ${target}`,
  open: 'Zu erledigen',
  plainText: 'Text',
  saveCode: 'Als Datei sichern…',
  table: 'Tabelle',
  wrapCode: 'Lange Zeilen umbrechen',
  speakers: { system: 'System:', user: 'Du:', assistant: 'Antwort:', tool: 'Werkzeug:' },
};

export const probabilities: Catalogue['probabilities'] = {
  alternatives: 'Hier am wahrscheinlichsten',
  bits: (bits) => `${f.number(Math.round(bits * 10) / 10)} Bit`,
  branch: (text, share, ends) => `Mit ${named(text, ends)} verzweigen, ${shareOf(share)}`,
  branchHere: 'Hier verzweigen',
  choice: (text, share, ends) => `${named(text, ends)}, ${shareOf(share)}.`,
  chosen: (text, share, ends) => `${named(text, ends)}, ${shareOf(share)}, in dieser Antwort`,
  closeTitle: 'Schließen (Esc)',
  counts: (count, unsure) => `${tokens(count)}, ${f.count(unsure)} unsicher`,
  end: 'Ende',
  entropy: 'Entropie',
  entropyNote: 'Über das ganze Vokabular, vor Temperatur und anderen Einstellungen der Auswahl',
  first: (count) => `Von dieser langen Antwort sind die ersten ${tokens(count)} zu sehen.`,
  isChosen: 'So steht es in der Antwort.',
  keys: {
    title: 'Tasten',
    walk: 'Durch die Token gehen',
    choose: 'Ein anderes wählen',
    branch: 'Hier verzweigen',
    nextUnsure: 'Nächstes unsicheres Token',
    close: 'Schließen',
  },
  load: (model) => `${model} laden`,
  noModel: (model) => `Diese Antwort hat ${model} geschrieben. Dieses Modell ist nicht mehr auf diesem ${machine}.`,
  noTokens:
    'Die Token dieser Antwort sind nicht gesichert, deshalb lassen sich ihre Wahrscheinlichkeiten nicht berechnen.',
  notLoaded: (model) => `Diese Antwort hat ${model} geschrieben. Dieses Modell ist nicht geladen.`,
  others: 'Andere',
  piece: '·',
  progress: (processed, total) => `${f.count(processed)} von ${tokens(total)} gelesen`,
  reading: 'Die Antwort wird noch einmal gelesen …',
  share: (share) => shareOf(share),
  sure: 'Sicher',
  title: 'Wahrscheinlichkeit',
  token: (text, share, ends, count) =>
    `${named(text, ends)}, ${shareOf(share)}, ${f.plural(count, 'Alternative', 'Alternativen')}`,
  tokens: 'Token dieser Antwort',
  unsure: 'Unsicher',
  whole: 'Ganze Antwort',
  wouldEnd: 'Die Antwort würde hier enden.',
};

function shareOf(share: number): string {
  if (share < 0.005) return `< ${f.share(0.01)}`;
  return share > 0.995 ? `> ${f.share(0.99)}` : f.share(share);
}

function named(text: string, ends: boolean): string {
  if (ends) return 'Ende der Antwort';
  const words = text.trim();
  if (words !== '') return `„${words}“`;
  return text.includes('\n') ? 'Zeilenumbruch' : text === '' ? 'Teil eines Zeichens' : 'Leerzeichen';
}
