// Der Server, den andere Programme fragen: sein Schalter, seine Schlüssel, was gefragt wurde.
import type { Catalogue } from '../en';
import { f, machine } from './formats';

export const server: Catalogue['server'] = {
  intro: `Programme auf diesem ${machine} können Cairns Modelle fragen, wie sie die von OpenAI oder Anthropic fragen.`,
  byCommand: 'Der Server läuft schon: „cairn serve“ hat ihn mit dieser Seite gestartet und beendet ihn.',
  address: 'Adresse',
  addressNote: 'Manche Programme wollen sie mit /v1 am Ende.',
  copyAddress: 'Adresse kopieren',
  off: 'Aus',
  token: 'Start-Token',

  keys: 'Schlüssel',
  keysNote: 'Jedes Programm bekommt einen Schlüssel und damit eigenen gesicherten Kontext.',
  noKeys: 'Noch hat kein Programm einen Schlüssel.',
  make: 'Schlüssel erstellen …',
  makeTitle: 'Schlüssel erstellen',
  makeNote: 'Nenne ihn nach dem Programm, das ihn benutzen wird.',
  makeAction: 'Schlüssel erstellen',
  made: (name) => `Kopiere den Schlüssel ${f.quote(name)} jetzt: Er wird nicht noch einmal gezeigt.`,
  madeLabel: 'Der neue Schlüssel',
  copyKey: 'Schlüssel kopieren',
  done: 'Fertig',
  used: (milliseconds, now) =>
    milliseconds === null ? 'Nie benutzt' : `Benutzt ${f.ago(milliseconds, now) ?? 'gerade eben'}`,
  madeOn: (milliseconds) => `Erstellt am ${f.date(milliseconds)}`,
  revoke: 'Widerrufen …',
  revokeOf: (name) => `${name} widerrufen …`,
  revokeTitle: (name) => `${f.quote(name)} widerrufen?`,
  revokeNote: 'Programme mit diesem Schlüssel werden ab jetzt abgewiesen, und ihre laufenden Antworten enden.',
  deletesSaved: 'Auch den Kontext löschen, der dafür gesichert wurde',
  deletesSavedNote: 'Sonst bleibt er, bis sein Platz gebraucht wird.',
  revokeAction: 'Schlüssel widerrufen',
  revoked: (name) => `${f.quote(name)} widerrufen`,

  setUps: 'Ein Programm einrichten',
  setUpsLabel: 'Programm',
  programs: { codex: 'Codex', claude_code: 'Claude Code', continue: 'Continue', zed: 'Zed' },
  copySetUp: 'Diesen Teil kopieren',
  genericTools:
    'Seine Chat-Vorlage kennt keine Werkzeuge. Cairn beschreibt sie ihm in einer allgemeinen Form. Wie gut es sie aufruft, hängt vom Modell ab. Seine Antworten haben den Header x-cairn-tools: generic.',
  newKeyNote: 'Der neue Schlüssel steht darin.',
  placeholderNote: 'Setze einen Schlüssel an die Stelle von YOUR_KEY.',
  places: {
    codex_file: 'In die Datei ~/.codex/config.toml.',
    codex_terminal: 'Im Terminal, bevor du codex startest.',
    claude_code_terminal: 'Im Terminal, bevor du claude startest.',
    continue_file: 'In die Datei ~/.continue/config.yaml.',
    zed_file:
      'In settings.json von Zed. Nach dem Schlüssel fragt Zed selbst, in seinen Einstellungen unter LLM Providers.',
  },

  requests: 'Letzte Anfragen',
  requestsNote: 'Nur im Arbeitsspeicher, ohne das, was gefragt und geantwortet wurde.',
  noRequests: 'Noch wurde nichts gefragt.',
  columns: {
    time: 'Zeit',
    key: 'Schlüssel',
    request: 'Anfrage',
    read: 'Tokens ein',
    written: 'Aus',
    first: 'Erstes Token',
    rate: 'Tokens/s',
    status: 'Status',
  },
  cached: (count) => `${f.count(count)} gesichert`,
  count: f.count,
  milliseconds: f.milliseconds,
  rate: f.rate,
  unknownKey: 'Unbekannt',
  none: '–',
};
