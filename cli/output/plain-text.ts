import { escaped, onOneLine, withoutControls } from '../../core/steering.ts';

export { escaped, onOneLine, withoutControls };

/** JSON with control characters escaped: safe for a terminal, and the same value for programs. */
export function jsonText(value: unknown, indent?: number): string {
  return escaped(JSON.stringify(value, null, indent));
}
