// The menu of a row of the list: of one chat, or of all that are selected with it.
import type { App } from '../app.svelte';
import type { Conversation } from '../platform/wire';
import { strings } from '../text';
import type { MenuItem } from '../ui/menu.svelte';
import { titleOf } from './conversations.svelte';

/** A menu with more is no menu. */
const MOST_FOLDERS = 8;

/** What can be done with one chat. */
export function chatItems(app: App, conversation: Conversation): MenuItem[] {
  const { cache, chat, chatFiles } = app;
  const { id, cache: saved } = conversation;
  const title = titleOf(conversation);
  const items: MenuItem[] = [{ label: strings.common.rename, run: () => (chat.actions.renamingId = id) }];
  if (!conversation.is_private) items.push(...placeItems(app, conversation));
  if (conversation.title !== '')
    items.push({ label: strings.chats.export, run: () => chatFiles.askForExport([id], title) });
  if (saved && saved.cached_tokens > 0) {
    items.push(
      { label: strings.startingPoints.save, run: () => cache.askForName(id) },
      { label: strings.saved.export, run: () => cache.askForExport({ type: 'conversation', id }, title) },
    );
  }
  items.push({ label: strings.common.delete, isDestructive: true, run: () => void chat.actions.remove([id]) });
  return items;
}

/** Where in the list the chat can go. */
function placeItems(app: App, { id, is_archived, is_pinned, folder_id }: Conversation): MenuItem[] {
  const { chat, folders } = app;
  const others = folders.items.filter((folder) => folder.id !== folder_id).slice(0, MOST_FOLDERS);
  const items: MenuItem[] = [
    {
      label: is_pinned ? strings.chats.unpin : strings.chats.pin,
      run: () => void chat.actions.pin(id, !is_pinned),
    },
    ...others.map((folder) => ({
      label: strings.chats.moveTo(folder.name),
      run: () => void chat.actions.move([id], folder.id),
    })),
    {
      label: strings.chats.moveToNew,
      run: () => folders.edit({}, (folder) => void chat.actions.move([id], folder.id)),
    },
  ];
  if (folders.get(folder_id))
    items.push({ label: strings.chats.moveOut, run: () => void chat.actions.move([id], null) });
  items.push({
    label: is_archived ? strings.chats.unarchive : strings.chats.archive,
    run: () => void chat.actions.archive([id], !is_archived),
  });
  return items;
}

/** What can be done with several chats at once. With a private one among them, they can only be deleted together. */
export function severalItems(app: App, ids: readonly string[]): MenuItem[] {
  const { chat, chatFiles, folders } = app;
  const words = strings.selectedChats;
  const rows = ids.flatMap((id) => chat.list.get(id) ?? []);
  const count = rows.length;
  const remove = { label: words.delete(count), isDestructive: true, run: () => void chat.actions.remove(ids) };
  if (rows.some((row) => row.is_private)) return [remove];
  const areArchived = rows.every((row) => row.is_archived);
  const others = folders.items.filter(({ id }) => rows.some((row) => row.folder_id !== id)).slice(0, MOST_FOLDERS);
  const isInFolder = rows.some((row) => folders.get(row.folder_id));
  return [
    ...others.map(({ id, name }) => ({
      label: words.moveTo(count, name),
      run: () => void chat.actions.move(ids, id),
    })),
    {
      label: words.moveToNew(count),
      run: () => folders.edit({}, (folder) => void chat.actions.move(ids, folder.id)),
    },
    ...(isInFolder ? [{ label: words.moveOut(count), run: () => void chat.actions.move(ids, null) }] : []),
    {
      label: areArchived ? words.unarchive(count) : words.archive(count),
      run: () => void chat.actions.archive(ids, !areArchived),
    },
    {
      label: words.export(count),
      run: () => chatFiles.askForExport([...ids], strings.chats.several(count)),
    },
    remove,
  ];
}
