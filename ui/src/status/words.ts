// The engine's state in words.
import type { EngineState } from '../platform/wire';
import { formatCount } from '../ui/numbers';

export function engineWords(engine: EngineState): string {
  switch (engine.state) {
    case 'empty':
      return 'No model loaded';
    case 'loading':
      return 'Loading model';
    case 'ready':
      return 'Ready';
    case 'prefilling':
      return `Reading ${formatCount(engine.processed_tokens)} of ${formatCount(engine.total_tokens)} tokens`;
    case 'generating':
      return 'Writing';
    case 'failed':
      return 'Model not loaded';
  }
}

/** `owner/name` without its owner, for places where room is short. */
export function shortModelName(name: string): string {
  return name.slice(name.lastIndexOf('/') + 1) || name;
}
