// Carries out what prevents a miss, and says so.
import type { App } from '../app.svelte';
import { remedyWords, type Circumstances, type Remedy } from './misses';

/** What holds now for the open chat. */
export function circumstances({ chat, chatModel, models, settings }: App): Circumstances {
  const { selected } = chat;
  return {
    isPinned: selected?.is_pinned ?? false,
    isPrivate: selected?.is_private ?? false,
    systemPrompt: selected && selected.prefix === null ? selected.system_prompt : null,
    settings: settings.current,
    models: models.loadable.map(({ name }) => name),
    loaded: chatModel.current?.name ?? null,
  };
}

/** Does it in the open chat; an error is reported, and then nothing else is said. */
export async function carryOut(app: App, remedy: Remedy): Promise<void> {
  if (await done(app, remedy)) app.toasts.show('info', remedyWords(remedy).done);
}

async function done(app: App, remedy: Remedy): Promise<boolean> {
  const { chat, chatModel, settings, toasts } = app;
  switch (remedy.type) {
    case 'pin':
      return chat.selectedId !== null && chat.actions.pin(chat.selectedId, true);
    case 'disk_limit':
      return settings.setFor({ type: 'app' }, 'cache_budget_bytes', remedy.bytes);
    case 'memory_limit':
      return settings.setFor({ type: 'app' }, 'cache_ram_budget_bytes', remedy.bytes);
    case 'system_prompt': {
      const problem = await chat.setSystemPrompt(remedy.text);
      if (problem !== null) toasts.show('error', problem);
      return problem === null;
    }
    case 'model':
      return chatModel.choose(remedy.name);
    case 'kv_bits':
      return settings.setFor({ type: 'model', name: remedy.model }, 'kv_bits', remedy.value);
  }
}
