import { escaped, onOneLine, withoutControls } from '../core/steering.ts';

export { escaped, onOneLine, withoutControls };

/** A value as JSON that no terminal obeys and every program reads as it was. */
export function jsonText(value: unknown, indent?: number): string {
  return escaped(JSON.stringify(value, null, indent));
}
