// Every scene, by its name.
import { answers } from './answers.mjs';
import { compare } from './compare.mjs';
import { documents } from './documents.mjs';
import { models } from './models.mjs';
import { pages } from './pages.mjs';
import { perChat } from './per-chat.mjs';
import { segments } from './segments.mjs';
import { tour } from './tour.mjs';

/** Those that need the built interface only. */
export const MADE_UP = { tour, answers, compare, documents, 'per-chat': perChat };

/** Those that need built programs, too. */
const REAL = { segments, pages, models };

export const SCENES = { ...MADE_UP, ...REAL };
