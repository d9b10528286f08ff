// Every scene, by its name.
import { answers } from './answers.mjs';
import { chatModels } from './chat-models.mjs';
import { compare } from './compare.mjs';
import { documents } from './documents.mjs';
import { models } from './models.mjs';
import { pages } from './pages.mjs';
import { perChat } from './per-chat.mjs';
import { segments } from './segments.mjs';
import { tour } from './tour.mjs';
import { waiting } from './waiting.mjs';

/** `segments`, `pages` and `models` need built programs; the interface alone is enough for the others. */
export const SCENES = {
  tour,
  answers,
  'chat-models': chatModels,
  waiting,
  compare,
  documents,
  'per-chat': perChat,
  segments,
  pages,
  models,
};
