// The one menu that opens at the pointer or under a button.

export interface MenuItem {
  label: string;
  run: () => void;
  /** Destroys something: red, and apart from the others. */
  isDestructive?: boolean;
  isDisabled?: boolean;
}

interface OpenMenu {
  label: string;
  items: MenuItem[];
  x: number;
  y: number;
}

/** Owns which menu is open. */
export class MenuState {
  open = $state.raw<OpenMenu | null>(null);

  /** Opens at the pointer; from the keyboard, under the element that has the focus. */
  show(event: MouseEvent, label: string, items: MenuItem[]): void {
    event.preventDefault();
    const isByKey = event.clientX === 0 && event.clientY === 0;
    const isButton = event.type === 'click';
    const box = event.currentTarget instanceof Element ? event.currentTarget.getBoundingClientRect() : null;
    const isUnder = box !== null && (isByKey || isButton);
    this.open = { label, items, x: isUnder ? box.left : event.clientX, y: isUnder ? box.bottom + 2 : event.clientY };
  }

  close(): void {
    this.open = null;
  }
}
