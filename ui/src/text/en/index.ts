// Every word that the window shows, by key. Sentences with values in them are functions.
import { exports, imports, pieces, saved, startingPoints } from './cache';
import {
  chat,
  chatFiles,
  chats,
  compare,
  content,
  endings,
  find,
  folders,
  held,
  misses,
  privateChat,
  probabilities,
  queue,
  reading,
  reasoning,
  selectedChats,
  stats,
  systemPrompt,
  toolCall,
  welcome,
  versions,
} from './chat';
import { commands, common, connection, keys, menus, monitor, palette, sidebar, status, unexpectedQuit } from './frame';
import { documents } from './documents';
import { failedOtherwise, failures, notices } from './failures';
import { jobs } from './jobs';
import { discover, downloads, firstModel, hub, models } from './models';
import { context, personas, presets } from './perChat';
import { server } from './server';
import { settings } from './settings';

export const en = {
  common,
  connection,
  unexpectedQuit,
  sidebar,
  commands,
  menus,
  keys,
  palette,
  welcome,
  chats,
  selectedChats,
  compare,
  folders,
  personas,
  chatFiles,
  privateChat,
  chat,
  context,
  presets,
  find,
  reasoning,
  toolCall,
  held,
  versions,
  queue,
  endings,
  failedOtherwise,
  failures,
  reading,
  documents,
  stats,
  misses,
  probabilities,
  systemPrompt,
  models,
  notices,
  downloads,
  discover,
  firstModel,
  hub,
  saved,
  startingPoints,
  pieces,
  imports,
  exports,
  settings,
  server,
  jobs,
  status,
  monitor,
  content,
};

/** What every language has to say. */
export type Catalogue = typeof en;
