// The engine's state and the names of models, in words.
import type { EngineState } from '../platform/wire';
import { strings } from '../text';

export function engineWords(engine: EngineState): string {
  switch (engine.state) {
    case 'empty':
      return strings.status.empty;
    case 'loading':
      return strings.status.loading;
    case 'ready':
      return strings.status.ready;
    case 'prefilling':
      return strings.reading.progress(engine.processed_tokens, engine.total_tokens);
    case 'generating':
      return strings.status.writing;
    case 'failed':
      return strings.status.failed;
  }
}

/** `owner/name` without its owner, for places where room is short. */
export function shortModelName(name: string): string {
  return name.slice(name.lastIndexOf('/') + 1) || name;
}
