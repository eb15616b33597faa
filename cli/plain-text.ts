import { escaped, withoutControls } from '../core/steering.ts';

export { escaped, withoutControls };

/** The same in one line: a line break is shown as ⏎. */
export function onOneLine(text: string): string {
  return withoutControls(text.replaceAll('\r\n', '\n')).replaceAll('\n', '⏎');
}

/** A value as JSON that no terminal obeys and every program reads as it was. */
export function jsonText(value: unknown, indent?: number): string {
  return escaped(JSON.stringify(value, null, indent));
}
