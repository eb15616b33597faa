/** Matches what moves a terminal's cursor, colours it, or turns the direction of writing. Line breaks do not. */
const steering = /[^\P{Cc}\n]|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu;

/**
 * Makes text of a model, an environment or a server safe for a terminal: characters that move its cursor, colour it or
 * turn the direction of writing become visible signs; line breaks stay.
 */
export function withoutControls(text: string): string {
  return text.replaceAll('\t', ' ').replaceAll(steering, '�');
}

/** Makes text safe and puts it on one line: a line break becomes the sign U+23CE. */
export function onOneLine(text: string): string {
  return withoutControls(text.replaceAll('\r\n', '\n')).replaceAll('\n', '⏎');
}

/** Text within quotes, for JSON or TOML: safe for terminals, and read back unchanged by programs. */
export function escaped(text: string): string {
  return text.replaceAll(steering, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

const shownChars = 60;

/** The beginning of an outside text, on one line that is safe for terminals. */
export function shortened(text: string, charsMax = shownChars): string {
  const cut = text.length <= charsMax ? text : `${text.slice(0, charsMax)}…`;
  return escaped(cut).replaceAll('\n', '\\n');
}

/** Safe text, quoted as JSON. */
export function quoted(text: string, charsMax = shownChars): string {
  const cut = text.length <= charsMax ? text : `${text.slice(0, charsMax)}…`;
  return escaped(JSON.stringify(cut));
}
