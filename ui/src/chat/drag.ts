// Dragging chats onto folders.

/** The kind of what is dragged: the ids of chats, each on a line. */
export const CHAT_TYPE = 'application/x-cairn-chat';

/** Whether chats are dragged. */
export function isChat(event: DragEvent): boolean {
  return event.dataTransfer?.types.includes(CHAT_TYPE) ?? false;
}

export function dragChats(event: DragEvent, ids: readonly string[], title: string): void {
  event.dataTransfer?.setData(CHAT_TYPE, ids.join('\n'));
  event.dataTransfer?.setData('text/plain', title);
}

/** The chats that are dropped. */
export function droppedChats(event: DragEvent): string[] {
  return event.dataTransfer?.getData(CHAT_TYPE).split('\n').filter(Boolean) ?? [];
}
