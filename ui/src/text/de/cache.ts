// Saved context: of a chat and of all chats, starting points, stored pieces, imports and exports.
import type { Catalogue } from '../en';
import { f, tokens } from './formats';

const tiers = { memory: 'bereit im Arbeitsspeicher', disk: 'auf der Festplatte' };

export const saved: Catalogue['saved'] = {
  states: { saved: 'Gesichert', partly: 'Teilweise gesichert', none: 'Nicht gesichert' },
  tiers,
  amount: (state, count, bytes) => `${state}: ${tokens(count)}, ${f.bytes(bytes)}`,
  forOtherModel: (loaded, model) => `Nicht für ${loaded} gesichert, nur für ${model}`,
  forMissing: (model) => `Nur für ${model} gesichert, das nicht hier ist`,
  forOtherVersion: (model) => `Nicht für diese Version von ${model} gesichert`,
  pinned: (state) => `${state}, angeheftet`,

  title: 'Gesicherter Kontext',
  numReady: (count) => `${f.plural(count, 'Chat kann', 'Chats können')} sofort weitergehen`,
  noneReady: 'Kein Chat kann sofort weitergehen',
  chats: 'Chats',
  moreChats: (count) => `Und ${f.plural(count, 'weiterer Chat', 'weitere Chats')}.`,
  loading: 'Gesicherter Kontext wird geladen …',
  memory: 'Arbeitsspeicher',
  disk: 'Festplatte',
  usage: (bytes, limit) => `${f.bytes(bytes)} von ${f.bytes(limit)}`,
  usageOver: (bytes, limit) => `${f.bytes(bytes)}, über der Grenze von ${f.bytes(limit)}`,
  overLimit: 'Angeheftete Chats, Startpunkte und was gerade benutzt wird, werden nie gelöscht, auch über einer Grenze.',
  hitRate: (share, cached, total) =>
    `Seit Cairn gestartet wurde, waren ${f.share(share)} der Prompts schon gelesen (${f.count(cached)} von ${tokens(total)}).`,
  noPrompts: 'Seit Cairn gestartet wurde, wurde noch kein Prompt gelesen.',
  notWritten: (problem) => `Ein Teil des Kontexts konnte nicht auf der Festplatte gesichert werden. ${problem}`,
  timeSaved: (milliseconds, since) =>
    since === null
      ? `${f.estimate(milliseconds)} Lesen insgesamt gespart`
      : `${f.estimate(milliseconds)} Lesen gespart seit dem ${f.date(since)}, gelöschte Chats mitgezählt.`,
  timeSavedHere: (milliseconds) => `Bisher ${f.estimate(milliseconds)} gespart`,
  changeLimits: 'Grenzen ändern …',
  deleteAllQuestion:
    'Das löscht den gesicherten Kontext jedes Chats, der nicht angeheftet ist. Startpunkte und alle Nachrichten bleiben. Ein Chat wird einmal neu gelesen, wenn du ihn fortsetzt.',

  panel: 'Gesicherter Kontext dieses Chats',
  ready: 'Kann sofort weitergehen',
  full: 'Gesichert, aber der Kontext ist voll',
  contextFull: 'Der Kontext ist voll',
  withDocuments: 'Die angehängten Dokumente werden zusammen mit deiner Frage gelesen.',
  reading: (share) => `Wird gelesen, ${f.share(share)} fertig`,
  readingHelp: 'Was das Modell gelesen hat, bleibt gesichert.',
  readyOnceLoaded: (model) => `Kann weitergehen, sobald ${model} geladen ist`,
  untilClosed: 'Nur bis Cairn beendet wird: Die Grenze für gesicherten Kontext auf der Festplatte ist 0.',
  readAgainOnce: (estimateMs) =>
    estimateMs === null ? 'Wird einmal neu gelesen' : `Wird einmal neu gelesen (etwa ${f.estimate(estimateMs)})`,
  restReadAgainOnce: 'Teilweise gesichert: Der Rest wird einmal neu gelesen',
  restReadAgainOnceAbout: (estimateMs) =>
    `Teilweise gesichert: Der Rest wird einmal neu gelesen (etwa ${f.estimate(estimateMs)})`,
  chooseToContinue: (answering, model) =>
    `Er ist für ${model} gesichert, und ${answering} antwortet. Wähle ${model}, um ohne neues Lesen weiterzumachen.`,
  notHere: (model) => `Er ist für ${model} gesichert, das nicht hier ist.`,
  notHereInstead: (model, answering) =>
    `Er ist für ${model} gesichert, das nicht hier ist; ${answering} liest ihn noch einmal.`,
  modelChanged: (model) => `Die Dateien von ${model} haben sich geändert, seit es diesen Chat gelesen hat.`,
  because: (cause) => `Der Grund: ${cause}.`,
  missing: (what) => `Es fehlen ${what}`,
  noneHelp:
    'Cairn sichert nach jeder Antwort, was das Modell gelesen hat, damit der Chat ohne neues Lesen weitergehen kann.',
  details: 'Einzelheiten',
  length: 'Länge',
  size: 'Größe',
  sizeShared: (bytes, own) => `${f.bytes(bytes)}, davon ${f.bytes(own)} nur für diesen Chat`,
  location: 'Gespeichert',
  model: 'Modell',
  sharedWith: 'Gemeinsam mit',
  pin: 'Anheften',
  unpin: 'Lösen',
  pinTitle: 'Nie löschen, um Platz zu schaffen',
  unpinTitle: 'Cairn darf ihn löschen, wenn der Platz knapp wird',
  pinnedNote: 'Angeheftet: Er wird nie gelöscht, um Platz zu schaffen.',
  export: 'Gesicherten Kontext exportieren …',
  exporting: (name) => `Der gesicherte Kontext von „${name}“ wird exportiert …`,
  exported: (name) => `Gesicherter Kontext von „${name}“ exportiert.`,
  delete: 'Gesicherten Kontext löschen …',
  nothingToDelete: (names) =>
    `Nichts zu löschen: Jeder Teil davon wird auch anderswo gebraucht${names.length > 0 ? ` (${f.names(names)})` : ''}.`,
  deleteQuestion:
    'Das löscht den gesicherten Kontext dieses Chats. Seine Nachrichten bleiben und werden einmal neu gelesen, wenn du weitermachst.',
  deleteQuestionShared:
    'Das löscht den gesicherten Kontext, den nur dieser Chat benutzt. Seine Nachrichten bleiben und werden einmal neu gelesen, wenn du weitermachst.',
  deleted: (title) => `Gesicherter Kontext von „${title}“ gelöscht. Die Nachrichten bleiben.`,
  deletedShared: (title) => `Gesicherter Kontext gelöscht, den nur „${title}“ benutzt hat. Die Nachrichten bleiben.`,
};

export const startingPoints: Catalogue['startingPoints'] = {
  title: 'Startpunkte',
  label: 'Startpunkt',
  actions: (name) => `Aktionen für ${name}`,
  empty:
    'Noch keine. Öffne den gesicherten Kontext eines Chats und wähle „Als Startpunkt sichern …“, oder importiere einen Prompt-Cache. Neue Chats können dort beginnen, ohne ihn neu zu lesen.',
  start: 'Chat beginnen',
  startFrom: (name) => `Chat bei ${name} beginnen`,
  rename: (name) => `Startpunkt ${name} umbenennen`,
  export: (name) => `Startpunkt ${name} exportieren`,
  exportTitle: 'Exportieren …',
  exporting: (name) => `„${name}“ wird exportiert …`,
  exported: (name) => `„${name}“ exportiert.`,
  delete: (name) => `Startpunkt ${name} löschen`,
  deleted: (name) => `„${name}“ gelöscht.`,
  importedFrom: (file) => `Importiert aus ${file}`,
  importedTitle: 'Aus einer Datei importiert',
  partly: 'teilweise gesichert, der Rest wird einmal neu gelesen',
  none: 'nicht gesichert, wird einmal neu gelesen',
  ready: 'bereit',
  willBeRead: 'wird einmal neu gelesen',
  forModel: (model) => `für ${model}`,
  forMissing: (model) => `für ${model}, das nicht hier ist`,
  numChats: (count) => f.plural(count, 'Chat', 'Chats'),
  lastUsed: (milliseconds, now) => `Zuletzt benutzt ${f.ago(milliseconds, now) ?? 'gerade eben'}`,
  readByOther: (model) => `${model} hat ihn gelesen: Wähle dieses Modell, um weiterzumachen.`,
  choose: (model) => `Mit ${model} antworten`,
  begins: 'Beginnt: ',
  ends: 'Endet: ',

  save: 'Als Startpunkt sichern …',
  saveTitle: 'Als Startpunkt sichern',
  saveNote: (count) =>
    `Neue Chats können hier beginnen, ohne ${count === null ? 'ihn' : tokens(count)} neu zu lesen. Ein Startpunkt wird nie gelöscht, um Platz zu schaffen.`,
  savedAs: (name) => `Als „${name}“ gesichert. Neue Chats können dort beginnen.`,
};

export const pieces: Catalogue['pieces'] = {
  title: 'Gespeicherte Stücke',
  note: 'Jede Zeile setzt die darüber fort, die weniger eingerückt ist. Womit mehrere Chats beginnen, ist einmal gespeichert.',
  empty: 'Noch ist nichts gesichert. Cairn sichert Kontext mit der ersten Antwort.',
  loading: 'Wird geladen …',
  more: (count) => `Und ${f.count(count)} weitere.`,
  columns: { text: 'Text', tokens: 'Tokens', size: 'Größe', used: 'Zuletzt benutzt' },
  readBy: (model) => `Von ${model} gelesen`,
  positions: (first, last) => (first === last ? f.count(first) : `${f.count(first)}–${f.count(last)}`),
  ago: (milliseconds, now) => f.ago(milliseconds, now) ?? 'gerade eben',
  used: (times, ago) => `${times === 1 ? 'einmal' : `${f.count(times)}-mal`} benutzt, zuletzt ${ago}`,
  pinned: 'angeheftet',
  tokens: 'Tokens ',
  lastPieceOf: 'Letztes Stück von:',
  startingPoint: '(Startpunkt)',
  facts: (positions, facts) => [`Tokens ${positions}`, ...facts].join(' · '),
  stored: (bytes, tier) => `${f.bytes(bytes)} ${tiers[tier]}`,
};

export const imports: Catalogue['imports'] = {
  button: 'Importieren …',
  title: 'Prompt-Cache importieren',
  refused: 'Diese Datei kann nicht importiert werden',
  reading: (file) => `${file} wird gelesen …`,
  readingLabel: 'Wird gelesen',
  importing: 'Wird importiert …',
  importingLabel: 'Wird importiert',
  verifying: 'Wird geprüft und importiert …',
  verify: 'Prüfen (liest alles neu)',
  verifyNote:
    'Prüft, ob die Datei wirklich das ist, was dieses Modell berechnet. Ohne Prüfung bleibt eine beschädigte oder gefälschte Datei unbemerkt.',
  hide: 'Ausblenden',
  import: 'Importieren',
  imported: (name) => `„${name}“ importiert.`,
  failed: (name, problem) => `„${name}“ wurde nicht importiert. ${problem}`,
  show: 'Zeigen',
  drop: 'Lege hier Dokumente ab, um sie anzuhängen, oder Chats, einen Prompt-Cache oder ein Modell, um es zu importieren',
  wrongEnding: (file) =>
    `„${file}“ ist kein Prompt-Cache von Cairn. Wähle eine Datei, deren Name auf .safetensors endet.`,
  wrongBeginning: (file) => `„${file}“ ist kein Prompt-Cache von Cairn, oder die Datei ist beschädigt.`,
  unreadable: (file) => `„${file}“ konnte nicht gelesen werden. Prüfe, ob die Datei noch da ist, wo sie war.`,
  exportName: 'Prompt-Cache',
  file: 'Datei',
  fileTitle: 'Titel',
  model: 'Modell',
  contains: 'Enthält',
  aChat: 'einen Chat',
  aBeginning: 'den Anfang eines Chats',
  length: 'Länge',
  size: 'Größe',
  madeBy: 'Erzeugt von',
  madeOn: 'Erzeugt am',
  date: f.date,
};

export const exports: Catalogue['exports'] = {
  title: (name) => `„${name}“ exportieren`,
  titleOfChat: (name) => `Gesicherten Kontext von „${name}“ exportieren`,
  help: 'Die Datei enthält den Text, den das Modell gelesen hat. Cairn kann sie auf jedem Computer mit demselben Modell importieren, und mlx-lm ab 0.32 kann damit weiterarbeiten.',
  forOlder: 'Für mlx-lm 0.31 oder älter',
  forOlderNote: 'mlx-lm ab 0.32 kann eine solche Datei nicht lesen. Cairn liest beide Arten.',
  export: 'Exportieren',
};
