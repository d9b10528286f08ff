// What a chat has of its own: context, presets of parameters, personas.
import type { Catalogue } from '../en';
import { f, tokens } from './formats';

export const context: Catalogue['context'] = {
  title: 'Kontext',
  used: (used, limit) => `${f.count(used)} von ${tokens(limit)}`,
  gauge: (used, limit, saved) => `${f.count(used)} von ${tokens(limit)} belegt, davon ${f.count(saved)} gesichert`,
  saved: (count) => `davon ${f.count(count)} gesichert`,
  parts: {
    system_prompt: 'System-Prompt',
    documents: 'Dokumente',
    starting_point: 'Startpunkt',
    summary: 'Zusammenfassung',
    messages: 'Nachrichten',
    template: 'Chat-Template',
    left: 'Frei',
    over: 'Über der Grenze',
  },
  token: 'Ein Token ist ein kurzes Wort oder ein Stück eines längeren. Das Modell liest und schreibt in Tokens.',
  compared: 'Die längere der beiden Antworten zählt, und der kürzere der beiden Kontexte.',
  noModel: 'Wie viel Platz bleibt, zeigt sich, sobald das Modell geladen ist.',
  nearlyFull: (left) => `In diesem Chat sind etwa ${tokens(left)} frei. Danach kann er nicht weitergehen.`,
  full: 'Diese Nachricht passt nicht mehr in den Kontext des Modells.',
  fullAlone:
    'Diese Nachricht ist länger als der Kontext des Modells. Kürze sie, entferne ein Dokument oder wähle ein Modell mit längerem Kontext.',
  fullForFailed: 'Schaffe Platz, um die letzte Frage noch einmal zu stellen.',
  fullNow: (used, limit) => `Der Kontext ist voll: ${f.count(used)} von ${tokens(limit)}.`,
  nextForgets:
    'Der Kontext ist fast voll. Dann werden die ältesten Nachrichten vergessen, und der Rest wird einmal neu gelesen.',
  nextSummarizes:
    'Der Kontext ist fast voll. Dann fasst das Modell die ältesten Nachrichten zusammen und liest den Rest einmal neu.',
  forget: 'Älteste Nachrichten vergessen',
  summarize: 'Sie zusammenfassen',
  forgotten: 'Was darüber steht, liest das Modell nicht mehr.',
  summarized: 'Das Modell liest diese Zusammenfassung statt dem, was darüber steht.',
  summary: 'Zusammenfassung der früheren Nachrichten',
  readAgain: 'Wieder lesen',
  showEarlier: (count) => `${f.plural(count, 'frühere Nachricht', 'frühere Nachrichten')} zeigen`,
  hideEarlier: 'Frühere Nachrichten ausblenden',
  summarizing: 'Die früheren Nachrichten werden zusammengefasst …',
  summaryLeft: (seconds) => `noch höchstens ${f.timeLeft(seconds)}`,
  summaryRead: (processed, total) => `${f.count(processed)} von ${f.plural(total, 'Token', 'Token')} gelesen`,
  summaryWritten: (written, limit) =>
    `${f.count(written)} von höchstens ${f.plural(limit, 'Token', 'Token')} geschrieben`,
};

export const presets: Catalogue['presets'] = {
  title: 'Vorlagen',
  actions: (name) => `Aktionen für die Vorlage ${name}`,
  apply: (name) => `Vorlage ${name} verwenden`,
  applied: (name) => `Dieser Chat verwendet die Werte von „${name}“.`,
  builtIn: {
    default: { name: 'Standard', note: 'Die Werte der Einstellungen, des Modells oder der Persona' },
    precise: { name: 'Genau', note: 'Die wahrscheinlichsten Wörter: für Fakten, Code und Zusammenfassungen' },
    lively: { name: 'Lebhaft', note: 'Auch weniger wahrscheinliche Wörter: für Ideen und Geschichten' },
  },
  deleted: (name) => `Vorlage „${name}“ gelöscht.`,
  name: 'Name der Vorlage',
  nothing: 'Ändere zuerst einen Wert: Eine Vorlage hat die Werte, die dieser Chat selbst setzt.',
  save: 'Als Vorlage sichern …',
  use: 'Verwenden',
};

export const personas: Catalogue['personas'] = {
  about:
    'Eine Persona hat einen Namen, einen System-Prompt und auf Wunsch ein Modell und eigene Parameter. Beginne einen Chat mit ihr aus der Seitenleiste.',
  title: 'Personas',
  one: 'Persona',
  actions: (name) => `Aktionen für die Persona ${name}`,
  anyModel: 'Das gerade geladene',
  create: 'Anlegen',
  delete: 'Persona löschen',
  deleted: (name) => `Persona „${name}“ gelöscht. Ihre Chats bleiben.`,
  edit: 'Persona bearbeiten …',
  editNamed: (name) => `Die Persona ${name} bearbeiten …`,
  editTitle: 'Persona bearbeiten',
  made: (name) => `Persona „${name}“ angelegt.`,
  model: 'Modell',
  new: 'Neue Persona …',
  newTitle: 'Neue Persona',
  newNote: 'Ihre Parameter beginnen als die, die dieser Chat selbst setzt.',
  note: 'Chats, die du mit ihr beginnst, fangen mit diesem System-Prompt an, der dann einmal für alle gelesen wird. Bestehende Chats behalten ihren.',
  parameters: 'Parameter',
  startChat: 'Neuer Chat',
  startChatWith: (name) => `Neuer Chat mit ${name}`,
  withName: (name) => `Ein Chat mit ${name}`,
};
