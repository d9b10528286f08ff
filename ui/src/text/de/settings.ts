// The settings and what their pages say.
import type { Catalogue } from '../en';
import { f, machine, tokens } from './formats';

const rows: Catalogue['settings']['rows'] = {
  appearance: { label: 'Erscheinungsbild', choices: { system: 'System', light: 'Hell', dark: 'Dunkel' } },
  default_model: { label: 'Standardmodell', note: 'Wird geladen, wenn Cairn startet.' },
  temperature: { label: 'Temperatur', note: 'Bei 0 wird immer das wahrscheinlichste Token genommen.' },
  max_tokens: { label: 'Größte Antwortlänge', unit: 'Tokens' },
  titles_by_model: {
    label: 'Titel vom Modell schreiben lassen',
    note: 'Wenn sonst nichts zu tun ist, anstelle der ersten Zeile. Ein Titel, den du geschrieben hast, bleibt.',
  },
  holds_loops: {
    label: 'Antworten anhalten, die sich wiederholen',
    note: 'Cairn fragt, ob es dabei bleibt oder weitergeht.',
  },
  at_overflow: {
    label: 'Wenn der Kontext voll ist',
    note: '„Aufhören“ beendet den Chat dort. Sonst werden die ältesten Nachrichten nicht mehr gelesen, oder statt ihrer eine Zusammenfassung des Modells; im Chat bleiben sie stehen.',
    choices: { stop: 'Aufhören', forget: 'Vergessen', summarize: 'Zusammenfassen' },
  },
  top_p: { label: 'Top-p', note: 'Lässt die unwahrscheinlichsten Tokens weg. 0 und 1 schalten es aus.' },
  top_k: { label: 'Top-k', note: 'Behält so viele der wahrscheinlichsten Tokens; 0 schaltet es aus.' },
  min_p: {
    label: 'Min-p',
    note: 'Lässt Tokens unter diesem Anteil des wahrscheinlichsten weg; 0 schaltet es aus.',
  },
  repetition_penalty: {
    label: 'Wiederholungsabzug',
    note: 'Über 1 kommen die letzten Wörter seltener wieder; 0 und 1 schalten es aus.',
  },
  presence_penalty: {
    label: 'Anwesenheitsabzug',
    note: 'Über 0 kommen Wörter, die zuletzt vorkamen, seltener wieder; 0 schaltet ihn aus.',
  },
  frequency_penalty: {
    label: 'Häufigkeitsabzug',
    note: 'Wie der Anwesenheitsabzug, für jedes Mal, das ein Wort vorkam.',
  },
  xtc_probability: {
    label: 'XTC-Wahrscheinlichkeit',
    note: 'Wie oft die wahrscheinlichsten Wörter wegbleiben, für weniger erwartete; 0 schaltet es aus.',
  },
  xtc_threshold: { label: 'XTC-Schwelle', note: 'Ab welcher Wahrscheinlichkeit XTC Wörter weglässt.' },
  stop: {
    label: 'Stopptexte',
    note: 'Die Antwort endet vor einem von ihnen: einer pro Zeile, mit \\n für einen Zeilenumbruch.',
    placeholder: 'Keine',
  },
  seed: { label: 'Startwert', note: 'Mit einem festen Startwert wiederholen sich Antworten.', placeholder: 'Zufällig' },
  alias: {
    label: 'Kurzname',
    note: 'So heißt dieses Modell hier und in Anfragen an Cairn.',
    placeholder: 'Keiner',
  },
  is_pinned: { label: 'Angeheftet', note: 'Es bleibt im Speicher, bis du es entlädst.' },
  idle_unload: {
    label: 'Bei Nichtgebrauch entladen',
    note: 'Macht den Speicher des Modells frei. Was ein Chat gelesen hat, wird vorher gesichert.',
    overruledNote: 'Ohne Wirkung, solange das Modell angeheftet ist: Es bleibt im Speicher.',
    choices: {
      never: 'Nie',
      five_minutes: 'Nach 5 Minuten',
      fifteen_minutes: 'Nach 15 Minuten',
      one_hour: 'Nach 1 Stunde',
      four_hours: 'Nach 4 Stunden',
    },
  },
  system_prompt: { label: 'System-Prompt', note: 'Für neue Chats mit diesem Modell.', placeholder: 'Keiner' },
  context_length: {
    label: 'Kontextlänge',
    note: 'Wie lang ein Chat mit diesem Modell werden kann, in Tokens (Wortteilen). Weniger braucht weniger Speicher.',
    boundNote: (most) => `Dieses Modell liest höchstens ${tokens(most)}.`,
    unit: 'Tokens',
    placeholder: 'Alle',
  },
  kv_bits: {
    label: 'Genauigkeit des Kontexts',
    note: 'Wie genau das Modell im Speicher hält, was es von einem Chat gelesen hat (der KV-Cache). Weniger Bits brauchen weniger Speicher.',
    choices: { plain: 'Genau', eight_bits: '8 Bit', four_bits: '4 Bit' },
  },
  keep_tokens: {
    label: 'Lange Prompts kürzen auf',
    note: 'Von einem längeren Prompt behält das Modell, was für sein Ende am wichtigsten ist, und vergisst den Rest. Antworten kommen schneller; spätere Fragen nach Vergessenem können falsch beantwortet werden.',
    unit: 'Tokens',
    placeholder: 'Alle',
  },
  bf16_state: {
    label: 'Zustand in 16 Bit',
    note: 'Chats mit diesem Modell brauchen weniger Arbeitsspeicher und weniger Platz auf der Festplatte; seine Antworten sind fast dieselben.',
  },
  speed: {
    label: 'Tempo',
    note: 'Rät voraus, damit das Modell mehrere Wörter auf einmal prüft; die Antworten bleiben dieselben. Automatisch rät aus dem, was im Chat schon steht, wo das Zeit spart. Ein Entwurfsmodell rät mit, wo es mehr spart.',
    choices: { automatic: 'Automatisch', plain: 'Einfach' },
  },
  draft_model: { label: 'Entwurfsmodell', note: 'Ein kleineres Modell derselben Familie, das vorausrät.' },
  wires_memory: {
    label: 'Modelle nie auslagern',
    note: 'Auf einem Mac ab macOS 15: Geladene Modelle bleiben im Speicher, große antworten so schneller, und andere Apps haben weniger Speicher. Gilt ab der nächsten Antwort.',
    statusNote: (status, modelTitle) => {
      const { recommended_bytes, tight_model } = status?.wired_memory ?? {};
      if (!tight_model || recommended_bytes === undefined) return null;
      return `„${modelTitle(tight_model.name)}“ braucht ${f.bytes(tight_model.bytes)} von den ${f.bytes(recommended_bytes)}, die die GPU behalten kann, und kann langsam sein. Weniger Bits oder ein kleineres Modell helfen, oder eine höhere Grenze: sudo sysctl iogpu.wired_limit_mb=N.`;
    },
  },
  cache_budget_bytes: {
    label: 'Grenze auf der Festplatte',
    unit: 'GB',
    note: 'Für gesicherten Kontext; bei 0 werden nur angeheftete Chats und Startpunkte gesichert.',
    statusNote: (status) => `Jetzt ${f.bytes(status?.cache_disk_bytes ?? 0)}.`,
  },
  cache_ram_budget_bytes: {
    label: 'Grenze im Arbeitsspeicher',
    unit: 'GB',
    note: 'Für gesicherten Kontext; was im Arbeitsspeicher ist, geht weiter, ohne von der Festplatte gelesen zu werden.',
    statusNote: (status) => `Jetzt ${f.bytes(status?.cache_ram_bytes ?? 0)}.`,
  },
  compresses_cache: {
    label: 'Gesicherten Kontext kleiner ablegen',
    note: 'Braucht etwa ein Drittel weniger Platz auf der Festplatte, und kein Wort geht verloren. Gilt für das, was ab jetzt gesichert wird.',
  },
  hub_endpoint: {
    label: 'Adresse des Hubs',
    note: 'Wo Modelle gefunden und heruntergeladen werden. Ein Zugriffstoken wird nur an den Hub gesendet, für den es eingegeben wurde.',
  },
  download_folder: {
    label: 'Ordner für Downloads',
    note: 'Neue Downloads kommen hierher. Modelle im Standardordner bleiben in der Liste.',
  },
  hub_proxy: {
    label: 'Proxyserver',
    note: 'Eine http-, https- oder socks5-Adresse für die Verbindung zum Hub.',
    placeholder: 'Der Proxy des Systems',
  },
  api_is_on: { label: 'Für andere Programme da sein', note: `Nur auf diesem ${machine}; auch nach einem Neustart.` },
  api_port: { label: 'Port', note: 'Programmen muss man eine Änderung sagen.' },
};

export const settings: Catalogue['settings'] = {
  title: 'Einstellungen',
  open: 'Einstellungen',
  ofChat: 'Antworten in diesem Chat',
  pages: {
    general: 'Allgemein',
    models: 'Modelle',
    generation: 'Antworten',
    storage: 'Speicher',
    shortcuts: 'Tastenkürzel',
    server: 'Server',
    about: 'Über Cairn',
  },
  sections: {
    general: 'Allgemein',
    models: 'Modelle',
    generation: 'Antworten',
    advanced: 'Erweitert',
    storage: 'Speicher',
    hub: 'Hugging Face',
    server: 'Server',
  },
  language: 'Sprache',
  languageNote: 'Dieses Fensters.',
  languages: { system: 'System', en: 'English', de: 'Deutsch' },
  used: (bytes) => `${f.bytes(bytes)} gesicherter Kontext auf der Festplatte`,
  deletion: 'Löschen',
  deleteRest: 'Alles außer Angeheftetem und Startpunkten',
  deleteRestNote: 'Chats bleiben und werden einmal neu gelesen, wenn du sie fortsetzt.',
  deleteRestAction: 'Gesicherten Kontext löschen …',
  shortcutsNote: 'Sie gelten auf jeder Seite des Fensters.',
  elsewhere: 'Im Chat und in der Liste',
  version: (version) => `Version ${version}`,
  about: 'Ein Gespräch behält seinen Platz: Was ein Modell einmal gelesen hat, wird nicht noch einmal gelesen.',
  licence: 'MIT oder Apache-2.0',
  licenceLabel: 'Lizenz',
  rows,
  rereadsNote: 'Nach einer Änderung werden Chats einmal neu gelesen.',
  targets: 'Einstellungen für',
  targetNames: { app: 'Alle Chats', model: 'Dieses Modell', persona: 'Diese Persona', chat: 'Dieser Chat' },
  forAllNote: 'Was ein Modell oder ein Chat selbst festlegt, geht vor.',
  forModelNote: (name) => `Was ${name} antwortet. Was ein Chat selbst festlegt, geht vor.`,
  sources: {
    default: 'Voreinstellung',
    generation_config: 'Vom Modell',
    app: 'Für alle Chats festgelegt',
    model: 'Für dieses Modell festgelegt',
    persona: 'Von der Persona',
    chat: 'Von diesem Chat',
    request: 'Von der Anfrage',
  },
  reset: 'Zurücksetzen',
  resetOf: (label) => `${label} zurücksetzen`,
  lastUsed: 'Zuletzt benutzt',
  withDraft: (name) => `Mit ${name} als Entwurfsmodell`,
  loadAtStart: 'Beim Start laden',
  loadAtStartNote: 'Statt des zuletzt benutzten Modells.',
  notFound: (name) => `${name} (nicht gefunden)`,
  diagnostics: 'Diagnose',
  diagnosticsNote: 'Um ein Problem zu melden. Ohne Texte von Chats und ohne Geheimnisse.',
  copyDiagnostics: 'Diagnose kopieren',
  deletesSaved: (bytes) =>
    `Das löscht etwa ${f.bytes(bytes)} gesicherten Kontext. Angeheftete Chats und Startpunkte bleiben.`,
  enterNumber: (least, most) => `Gib eine Zahl von ${least} bis ${most} ein.`,
  enterWhole: (least, most) => `Gib eine ganze Zahl von ${least} bis ${most} ein.`,
};
