// Documents: attached files, how far they are read, and the reader.
import type { Catalogue } from '../en';
import { f, tokens } from './formats';

const kinds = {
  text: 'Text',
  code: 'Code',
  markdown: 'Markdown',
  csv: 'Tabelle',
  html: 'Text einer Webseite',
  pdf: 'Text eines PDF',
};

const some = (names: string[]) => f.someNames(names, (count) => f.plural(count, 'andere', 'andere'));

export const documents: Catalogue['documents'] = {
  again: 'Noch einmal versuchen',
  amount: (count, bytes) => (count === null ? f.bytes(bytes) : tokens(count)),
  askAbout: (names) =>
    names.length === 1 ? `Frag etwas zu „${names[0]}“` : `Frag etwas zu ${f.count(names.length)} Dokumenten`,
  askNote:
    'Cairn liest, während du schreibst, ein einziges Mal. Jede weitere Frage beginnt, wo das Lesen geendet hat, auch nächste Woche.',
  attach: 'Dateien anhängen',
  attachPasted: 'Stattdessen anhängen',
  attachTitle: 'Text, Code, Markdown, CSV, HTML oder PDF anhängen',
  cut: (count) => `Hier stehen nur die ersten ${f.count(count)} Zeichen. Das Modell liest alles.`,
  facts: (kind, bytes, count) => [kinds[kind], f.bytes(bytes), ...(count === null ? [] : [tokens(count)])].join(' · '),
  failed: (why) => `Nicht gelesen. ${why}`,
  fetching: 'Wird geöffnet …',
  find: 'Im Dokument suchen',
  folder: {
    all: 'Alle Dateien',
    attach: (count) => (count === 0 ? 'Anhängen' : `${f.plural(count, 'Datei', 'Dateien')} anhängen`),
    bytes: f.bytes,
    cut: (count) => `Der Ordner hat mehr Dateien: Nur ${f.count(count)} stehen hier.`,
    leftOut: (count) => `Weggelassen (${f.count(count)})`,
    none: 'In diesem Ordner ist keine Datei, die angehängt werden kann.',
    sum: (count, bytes) => `${f.count(count)} · ${f.bytes(bytes)}`,
    title: (name) => `Dateien aus „${name}“ anhängen`,
    why: {
      hidden: 'versteckt',
      program: 'von einem Programm erzeugt',
      binary: 'kein Text',
      empty: 'leer',
      tooLarge: 'zu groß',
    },
  },
  label: 'Dokumente',
  matches: (at, count) => (count === 0 ? 'Nicht gefunden' : `${f.count(at)} von ${f.count(count)}`),
  next: 'Nächster Treffer',
  notAttached: 'Was nicht angehängt werden konnte',
  open: (name, amount) => `${name}, ${amount}: öffnen`,
  openTitle: (name) => `Text von ${name} zeigen`,
  opening: (name, page, pages, more) => {
    const where = page === null || pages === null ? '' : `, Seite ${f.count(page)} von ${f.count(pages)}`;
    return `${name} wird geöffnet${where} …${more > 0 ? ` (noch ${f.count(more)})` : ''}`;
  },
  pasted: (chars) => `Du hast ${f.count(chars)} Zeichen eingefügt.`,
  pastedName: 'Eingefügter Text.txt',
  previous: 'Voriger Treffer',
  problems: {
    office: (name) =>
      `„${name}“ kann so nicht gelesen werden. Sichere es in einem Programm, das es kann, als PDF oder reinen Text und hänge das an.`,
    binary: (name) => `„${name}“ ist kein Text. Angehängt werden können Text, Code, Markdown, CSV, HTML und PDF.`,
    damagedPdf: (name) =>
      `„${name}“ kann nicht als PDF gelesen werden: Die Datei ist beschädigt oder etwas anderes. Öffne sie woanders und sichere sie neu.`,
    empty: (name) => `„${name}“ ist leer: Darin gibt es nichts zu lesen.`,
    encrypted: (name) =>
      `„${name}“ ist durch ein Passwort geschützt. Sichere eine Kopie ohne Passwort und hänge diese an.`,
    scanned: (name) =>
      `„${name}“ hat Bilder von Seiten, aber keinen Text. Lass den Text darin erkennen und hänge das Ergebnis an.`,
    tooLarge: (name, bytes, most) =>
      `„${name}“ ist zu groß (${f.bytes(bytes)}, höchstens ${f.bytes(most)}). Hänge einen Teil davon an.`,
    unreadable: (name) => `„${name}“ konnte nicht gelesen werden. Sieh nach, ob die Datei noch da ist.`,
  },
  problemsOfSeveral: {
    office: (names) =>
      `${f.count(names.length)} Dateien können so nicht gelesen werden: ${some(names)}. Sichere sie in einem Programm, das es kann, als PDF oder reinen Text und hänge das an.`,
    binary: (names) =>
      `${f.count(names.length)} Dateien sind kein Text: ${some(names)}. Angehängt werden können Text, Code, Markdown, CSV, HTML und PDF.`,
    damagedPdf: (names) =>
      `${f.count(names.length)} Dateien können nicht als PDF gelesen werden: ${some(names)}. Sie sind beschädigt oder etwas anderes. Öffne sie woanders und sichere sie neu.`,
    empty: (names) => `${f.count(names.length)} Dateien sind leer: ${some(names)}. Darin gibt es nichts zu lesen.`,
    encrypted: (names) =>
      `${f.count(names.length)} Dateien sind durch ein Passwort geschützt: ${some(names)}. Sichere Kopien ohne Passwort und hänge diese an.`,
    scanned: (names) =>
      `${f.count(names.length)} Dateien haben Bilder von Seiten, aber keinen Text: ${some(names)}. Lass den Text darin erkennen und hänge die Ergebnisse an.`,
    tooLarge: (names, most) =>
      `${f.count(names.length)} Dateien sind zu groß (höchstens ${f.bytes(most)}): ${some(names)}. Hänge Teile davon an.`,
    unreadable: (names) =>
      `${f.count(names.length)} Dateien konnten nicht gelesen werden: ${some(names)}. Sieh nach, ob sie noch da sind.`,
  },
  progress: (processed, total) => `${f.count(processed)} von ${tokens(total)} gelesen`,
  read: (count) => `Gelesen (${tokens(count)}). Deine Frage geht hier weiter.`,
  readNow: 'Jetzt lesen',
  reading: 'Die Dokumente werden gelesen',
  remove: (name) => `${name} entfernen`,
  removed: (name) => `„${name}“ entfernt.`,
  showAll: (count) => `Alle ${f.count(count)} Dokumente zeigen`,
  stale: (model) => `Ein anderes Modell hat es gelesen; ${model} liest es mit deiner Frage.`,
  stop: 'Lesen anhalten',
  textOf: (name) => `Text von ${name}`,
  timeLeft: (seconds) => `noch etwa ${f.timeLeft(seconds)}`,
  tooLong: (count, model) =>
    `${tokens(count)} mehr, als in den Kontext von ${model} passen. Entferne ein Dokument oder wähle ein Modell mit längerem Kontext.`,
  tooLongNow: (count, model) =>
    `Mit dem, was in diesem Chat steht, sind es ${tokens(count)} mehr, als in den Kontext von ${model} passen. Lass die ältesten Nachrichten vergessen oder entferne ein Dokument.`,
  tooLongToSend: 'Die Dokumente passen nicht in den Kontext des Modells.',
  unread: 'Noch nicht gelesen. Es wird mit deiner Frage gelesen.',
  waiting: 'Das Lesen wird vorbereitet …',
  withQuestion: 'Es wird mit deiner Frage gelesen.',
};
