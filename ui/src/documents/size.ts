// How large a document is for a model.
import type { Document } from '../platform/wire';

/** The tokens that a document adds to a prompt of a model; null if no one has counted them for it. `model`: null is any. */
export function tokensFor({ tokens, counted_by }: Document, model: string | null): number | null {
  return model === null || counted_by === model ? tokens : null;
}
