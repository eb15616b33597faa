import { readMarkers, type MarkerFormat } from './marker-machine.ts';
import { withSchemaTypes } from './schema-types.ts';
import type { ToolReader } from './tool-readers.ts';
import { objectOf, textOf, type WrittenJson, writeWritten } from '../../core/written-json.ts';

const quote = '<|"|>';

const format: MarkerFormat = {
  markers: {
    open: '<|tool_call>',
    close: '<tool_call|>',
    call: 'call:',
    colon: ':',
    brace: '{',
    bracket: '(',
  },
  steps: {
    'content open': '+preamble',
    'content close': 'content',
    'preamble close': '.content',
    'preamble call': 'name',
    'preamble colon': 'name',
    'name brace': 'arguments',
    'name bracket': 'arguments',
    'name close': '.content',
    'arguments close': '.content',
  },
  argumentsOf(written, { name, tools }) {
    const inside = new Pairs(written.trim().replace(/[})]$/, '')).entries(0);
    return writeWritten(withSchemaTypes(inside, name, tools));
  },
};

/** Gemma 4: `call:look{key:5,note:<|"|>text<|"|>}`; bare values get their types from the tool's schema. */
export const gemma4: ToolReader = (text, tools) => readMarkers(format, text, tools);

const depthMax = 100;

class Pairs {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  entries(depth: number): WrittenJson {
    const entries: [string, WrittenJson][] = [];
    for (
      this.#skip(/[ ,\n\t]*/y);
      this.#at < this.#text.length && this.#text[this.#at] !== '}';
      this.#skip(/[ ,\n\t]*/y)
    ) {
      const colon = this.#text.indexOf(':', this.#at);
      if (colon < 0) break;
      const key = this.#text.slice(this.#at, colon).trim();
      this.#at = colon + 1;
      this.#skip(/[ \n\t]*/y);
      const name = key.startsWith(quote) && key.endsWith(quote) ? key.slice(quote.length, -quote.length) : key;
      const value = this.#value(depth);
      if (value === null) break;
      entries.push([name, value]);
    }
    return objectOf(entries);
  }

  #items(depth: number): WrittenJson {
    const items: WrittenJson[] = [];
    for (
      this.#skip(/[ ,\n\t]*/y);
      this.#at < this.#text.length && this.#text[this.#at] !== ']';
      this.#skip(/[ ,\n\t]*/y)
    ) {
      const value = this.#value(depth);
      if (value === null) break;
      items.push(value);
    }
    return { kind: 'array', items };
  }

  #value(depth: number): WrittenJson | null {
    if (depth > depthMax) return null;
    if (this.#at >= this.#text.length) return textOf('');
    if (this.#text.startsWith(quote, this.#at)) {
      const from = this.#at + quote.length;
      const end = this.#text.indexOf(quote, from);
      this.#at = end < 0 ? this.#text.length : end + quote.length;
      return textOf(this.#text.slice(from, end < 0 ? undefined : end));
    }
    const first = this.#text[this.#at];
    if (first === '{' || first === '[') {
      this.#at++;
      const inside = first === '{' ? this.entries(depth + 1) : this.#items(depth + 1);
      this.#skip(first === '{' ? /[^}]*\}?/y : /[^\]]*\]?/y);
      return inside;
    }
    const bare = this.#skip(/[^,}\]]*/y);
    return bare === '' ? null : textOf(bare.trim());
  }

  #skip(pattern: RegExp): string {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)![0];
    this.#at += found.length;
    return found;
  }
}
