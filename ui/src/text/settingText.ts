// The words of one setting.
import type { Status } from '../platform/wire';

export interface SettingText {
  label: string;
  /** One sentence: what it does, or what a special value means. */
  note?: string;
  /** What depends on what the engine does now. */
  statusNote?: (status: Status | null, modelTitle: (name: string) => string) => string | null;
  /** What the model that it is set for bounds it by. */
  boundNote?: (most: number) => string;
  /** Instead of the note, while another setting of the same model takes its effect. */
  overruledNote?: string;
  unit?: string;
  placeholder?: string;
  /** Of a setting with few values: their names. */
  choices?: Record<string, string>;
}
