// Dragging chats onto folders.

/** The kind of what is dragged: the id of a chat. */
export const CHAT_TYPE = 'application/x-cairn-chat';

/** Whether a chat is dragged. */
export function isChat(event: DragEvent): boolean {
  return event.dataTransfer?.types.includes(CHAT_TYPE) ?? false;
}
