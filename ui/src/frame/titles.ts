// Tooltips of buttons that do what a command does: its words, and its shortcut.
import { commands, type CommandId } from '../commands';
import { strings } from '../text';
import { shortcutText } from '../ui/shortcuts';

/** The words of a command without the dots that announce a question, and how it is pressed. */
export function titleWith(id: CommandId, words = strings.commands[id].replace(/…$/, '')): string {
  const shortcut = commands.find((command) => command.id === id)?.shortcut;
  return shortcut ? `${words} (${shortcutText(shortcut)})` : words;
}
