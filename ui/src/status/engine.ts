// The engine's state and the names of models, in words.
import { knownNames } from '../models/knownNames.svelte';
import type { EngineState } from '../platform/wire';
import { strings } from '../text';

export function engineWords(engine: EngineState): string {
  const words = strings.status;
  switch (engine.state) {
    case 'empty':
      return words.empty;
    case 'loading':
      return words.loading(engine.bytes_read, engine.total_bytes);
    case 'ready':
      return words.ready;
    case 'prefilling':
      return engine.total_tokens > 0
        ? words.readingShare(engine.processed_tokens / engine.total_tokens)
        : words.reading;
    case 'generating':
      return words.writing;
    case 'failed':
      return words.failed;
  }
}

/** How much of what the engine does is done, from 0 to 1. */
export function engineShare(engine: EngineState): number {
  switch (engine.state) {
    case 'empty':
    case 'failed':
      return 0;
    case 'loading':
      return engine.total_bytes > 0 ? engine.bytes_read / engine.total_bytes : 0;
    case 'prefilling':
      return engine.total_tokens > 0 ? engine.processed_tokens / engine.total_tokens : 0;
    case 'ready':
    case 'generating':
      return 1;
  }
}

/** What a person calls a model: its alias, else the title that its name has. */
export function shortModelName(name: string): string {
  return knownNames.of(name);
}
