/** JSON in its written form: numbers keep their digits, keys their order. JavaScript's own values keep neither. */
export type WrittenJson =
  | { readonly kind: 'object'; readonly entries: Map<string, WrittenJson> }
  | { readonly kind: 'array'; readonly items: WrittenJson[] }
  | { readonly kind: 'text'; readonly text: string }
  /** A number (Python's NaN and infinities as well), true, false or null. */
  | { readonly kind: 'word'; readonly word: string };

/** Python's own recursion ends about here, and a deeper value is no argument of a tool. */
const depthMax = 500;

/** The first value of a text, and its end; null if there is none. */
export function readWritten(text: string, from = 0): { readonly value: WrittenJson; readonly end: number } | null {
  let at = from;
  const blanks = (): void => {
    while (text[at] === ' ' || text[at] === '\n' || text[at] === '\r' || text[at] === '\t') at++;
  };
  const value = (depth: number): WrittenJson | null => {
    blanks();
    const first = text[at];
    if (first === '"') return readText();
    if (first === '{' || first === '[') return depth < depthMax ? readInside(first, depth) : null;
    wordPattern.lastIndex = at;
    const word = wordPattern.exec(text)?.[0];
    if (word === undefined) return null;
    at += word.length;
    return { kind: 'word', word };
  };
  const readText = (): { kind: 'text'; text: string } | null => {
    let end = at + 1;
    while (end < text.length && text[end] !== '"') end += text[end] === '\\' ? 2 : 1;
    if (end >= text.length) return null;
    const written = text.slice(at, end + 1);
    at = end + 1;
    try {
      return { kind: 'text', text: JSON.parse(written) as string };
    } catch {
      return null; // an escape or a character that JSON does not have
    }
  };
  const readInside = (opening: '{' | '[', depth: number): WrittenJson | null => {
    at++;
    const entries = new Map<string, WrittenJson>();
    const items: WrittenJson[] = [];
    const whole: WrittenJson = opening === '{' ? { kind: 'object', entries } : { kind: 'array', items };
    const closing = opening === '{' ? '}' : ']';
    blanks();
    if (text[at] === closing) return (at++, whole);
    for (;;) {
      blanks();
      const key = opening === '{' && text[at] === '"' ? readText() : null;
      if (opening === '{') {
        blanks();
        if (key === null || text[at++] !== ':') return null;
      }
      const item = value(depth + 1);
      if (item === null) return null;
      if (key === null) items.push(item);
      else entries.set(key.text, item);
      blanks();
      const next = text[at++];
      if (next === closing) return whole;
      if (next !== ',') return null;
    }
  };
  const read = value(0);
  return read === null ? null : { value: read, end: at };
}

const wordPattern = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|NaN|-?Infinity/y;

/** A text of one value and spaces; null for any other text. */
export function parseWritten(text: string): WrittenJson | null {
  const read = readWritten(text);
  return read !== null && text.slice(read.end).trim() === '' ? read.value : null;
}

/** Writes JSON like Python's json.dumps, which vLLM uses for arguments. */
export function writeWritten(value: WrittenJson): string {
  return writtenWith(value, ', ', ': ');
}

/** Writes JSON without spaces, like JSON.stringify. */
export function writtenCompactly(value: WrittenJson): string {
  return writtenWith(value, ',', ':');
}

function writtenWith(value: WrittenJson, comma: string, colon: string): string {
  const write = (one: WrittenJson): string => writtenWith(one, comma, colon);
  switch (value.kind) {
    case 'object':
      return `{${[...value.entries].map(([key, item]) => JSON.stringify(key) + colon + write(item)).join(comma)}}`;
    case 'array':
      return `[${value.items.map(write).join(comma)}]`;
    case 'text':
      return JSON.stringify(value.text);
    default:
      return value.word;
  }
}

export function objectOf(entries: Iterable<readonly [string, WrittenJson]>): WrittenJson {
  return { kind: 'object', entries: new Map(entries) };
}

export function textOf(text: string): WrittenJson {
  return { kind: 'text', text };
}
