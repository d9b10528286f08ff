// Where the model and the system prompt of a chat come from, in words.
import type { ChatModel, Folder, Persona } from '../platform/wire';
import { strings } from '../text';

/** What a chat was begun with; each is null where there is none. */
interface Begun {
  persona: Persona | null;
  folder: Folder | null;
}

export function sourceOfModel({ name, source }: ChatModel, { persona, folder }: Begun): string {
  if (source === 'chat' && persona?.model === name) return strings.settings.sources.persona;
  if (source === 'folder' && folder) return strings.folders.from(folder.name);
  return strings.models.chatSources[source];
}

/**
 * `own`: the model's own prompt, which holds while the chat has none. `isPreset`: the core gives it to a new chat. Null where
 * there is no prompt at all.
 */
export function sourceOfPrompt(
  prompt: string,
  own: string | null,
  { persona, folder }: Begun,
  isPreset = false,
): string | null {
  if (prompt === '') return own ? strings.systemPrompt.own : null;
  if (persona?.system_prompt === prompt) return strings.settings.sources.persona;
  if (folder?.system_prompt === prompt) return strings.folders.from(folder.name);
  return isPreset ? strings.settings.sources.model : strings.settings.sources.chat;
}
