/**
 * What differs between two sandboxes though a program does the same in both. Times and durations pass: they are the same
 * whatever they are. Names stand for a thing for as long as the rollout lasts: temporary paths, addresses, ports, ids of
 * processes and commits. They are learned where a text of this attempt agrees with a recorded one, and then mapped: the
 * model sees the names of the first attempt, and the program its own.
 */
export class SandboxNames {
  readonly #recordedOf = new Map<string, string>();
  readonly #liveOf = new Map<string, string>();
  #toRecorded: Replacement | null = null;
  #toLive: Replacement | null = null;

  /** The names by which each text of this attempt is the recorded one; null if it is another text. */
  agree(texts: readonly { readonly recorded: string; readonly live: string }[]): readonly NamePair[] | null {
    const found = new Map<string, string>();
    const back = new Map<string, string>();
    const bareRecorded = anyOf([...this.#liveOf.keys(), ...foldersIn(texts.map(({ recorded }) => recorded))]);
    const bareLive = anyOf([...this.#recordedOf.keys(), ...foldersIn(texts.map(({ live }) => live))]);
    for (const { recorded, live } of texts) {
      if (recorded === live && this.#recordedOf.size === 0) continue;
      const [was, is] = [piecesOf(recorded, bareRecorded), piecesOf(live, bareLive)];
      if (was.length !== is.length) return null;
      for (const [i, one] of was.entries()) {
        const other = is[i]!;
        if (one.kind !== other.kind) return null;
        if (one.kind === 'passing') continue;
        if (one.kind === 'text') {
          if (one.text !== other.text) return null;
          continue;
        }
        const before = found.get(other.text) ?? this.#recordedOf.get(other.text) ?? one.text;
        const after = back.get(one.text) ?? this.#liveOf.get(one.text) ?? other.text;
        if (before !== one.text || after !== other.text) return null;
        found.set(other.text, one.text);
        back.set(one.text, other.text);
      }
    }
    return [...found].map(([live, recorded]) => ({ live, recorded }));
  }

  learn(pairs: readonly NamePair[]): void {
    for (const { live, recorded } of pairs) {
      this.#recordedOf.set(live, recorded);
      this.#liveOf.set(recorded, live);
      const [liveBase, recordedBase] = [lastPart(live), lastPart(recorded)];
      if (liveBase === recordedBase || liveBase === live || recordedBase === recorded) continue;
      if (liveBase.length < bareCharactersMin || recordedBase.length < bareCharactersMin) continue;
      this.#recordedOf.set(liveBase, recordedBase);
      this.#liveOf.set(recordedBase, liveBase);
    }
    this.#toRecorded = null;
    this.#toLive = null;
  }

  /** All names so far, for an attempt that goes on in a snapshot of this sandbox. */
  pairs(): readonly NamePair[] {
    return [...this.#recordedOf].map(([live, recorded]) => ({ live, recorded }));
  }

  /** A text of the program with the names that the model knows. */
  toRecorded(text: string): string {
    this.#toRecorded ??= new Replacement(this.#recordedOf);
    return this.#toRecorded.in(text);
  }

  /** A text of the model with the names that this sandbox has. */
  toLive(text: string): string {
    this.#toLive ??= new Replacement(this.#liveOf);
    return this.#toLive.in(text);
  }
}

export interface NamePair {
  readonly live: string;
  readonly recorded: string;
}

/** A shorter one may stand in a text for something else. */
const bareCharactersMin = 4;
/** Each is looked for at every place of a text. */
const bareNamesMax = 500;

/** Names where a text shows that they are some, and long ones wherever they stand. */
class Replacement {
  readonly #pattern: RegExp | null;
  readonly #names: ReadonlyMap<string, string>;

  constructor(names: ReadonlyMap<string, string>) {
    this.#names = new Map([...names].filter(([from, to]) => from !== to));
    this.#pattern = anyOf([...this.#names.keys()]);
  }

  in(text: string): string {
    if (this.#names.size === 0) return text;
    return piecesOf(text)
      .map(({ kind, text: piece }) => (kind === 'name' && this.#names.get(piece)) || this.#bareIn(piece))
      .join('');
  }

  #bareIn(text: string): string {
    return this.#pattern === null ? text : text.replaceAll(this.#pattern, (name) => this.#names.get(name)!);
  }
}

/** Finds any of these wherever it stands by itself; short ones may stand for something else. */
function anyOf(names: readonly string[]): RegExp | null {
  const long = [...new Set(names)].filter(({ length }) => length >= bareCharactersMin).slice(0, bareNamesMax);
  const longestFirst = long.toSorted((a, b) => b.length - a.length);
  const any = longestFirst.map((name) => name.replaceAll(/[\\^$.*+?()[\]{}|]/g, String.raw`\$&`)).join('|');
  return any === '' ? null : new RegExp(String.raw`${start}(?:${any})(?!\w)`, 'g');
}

/** Names of temporary folders without what they are in: programs make other names of them. */
function foldersIn(texts: readonly string[]): string[] {
  return texts.flatMap((text) => [...text.matchAll(temporary)].map(([folder]) => lastPart(folder)));
}

function lastPart(name: string): string {
  return name.slice(name.lastIndexOf('/') + 1);
}

interface Piece {
  readonly kind: 'text' | 'passing' | 'name';
  readonly text: string;
}

/** `bare` = names that stand for something wherever they are. */
function piecesOf(text: string, bare: RegExp | null = null): Piece[] {
  const pieces: Piece[] = [];
  let end = 0;
  const push = (kind: Piece['kind'], from: number, to: number): void => {
    if (to > from || kind !== 'text') pieces.push({ kind, text: text.slice(from, to) });
    end = to;
  };
  for (const match of text.matchAll(differing)) {
    const { passing, path, labelled, id } = match.groups!;
    push('text', end, match.index);
    if (passing !== undefined) push('passing', match.index, match.index + passing.length);
    else {
      const name = path ?? labelled ?? id!;
      const at = match.index + match[0].length - name.length;
      push('text', match.index, at);
      push('name', at, at + name.length);
    }
  }
  push('text', end, text.length);
  const whole = joined(pieces);
  return bare === null ? whole : whole.flatMap((piece) => (piece.kind === 'text' ? cutAt(bare, piece.text) : [piece]));
}

function cutAt(names: RegExp, text: string): Piece[] {
  const pieces: Piece[] = [];
  let end = 0;
  for (const { 0: name, index } of text.matchAll(names)) {
    if (index > end) pieces.push({ kind: 'text', text: text.slice(end, index) });
    pieces.push({ kind: 'name', text: name });
    end = index + name.length;
  }
  return end < text.length ? [...pieces, { kind: 'text', text: text.slice(end) }] : pieces;
}

/** A label and the text before it are one. */
function joined(pieces: readonly Piece[]): Piece[] {
  const all: Piece[] = [];
  for (const piece of pieces) {
    const last = all.at(-1);
    if (last?.kind === 'text' && piece.kind === 'text') all[all.length - 1] = { ...last, text: last.text + piece.text };
    else all.push(piece);
  }
  return all;
}

/** A word begins here. In a text of JSON the letter of an escape may stand before it: `\nNov 30`. */
const start = String.raw`(?<!(?<!\\)\w)`;
const month = '(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}';
const day = '(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}';
const clock = String.raw`\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?: ?[AP]M)?`;
const zone = String.raw`(?: ?(?:Z|UTC|GMT|CET|CEST|[+-]\d{2}:?\d{2})\b)?`;
const unit = '(?:ns|µs|us|ms|s|secs?|seconds?|m|min|mins|minutes?|h|hrs?|hours?)';

const passing = [
  String.raw`${start}\d{4}[-/]\d{2}[-/]\d{2}(?:[T ]${clock}${zone})?`,
  String.raw`${start}(?:${day},? )?(?:${month} {1,2}\d{1,2}|\d{1,2}[ /-]${month})\b(?:,?[ /-]\d{4}\b)?(?:,?[ :]{1,2}${clock}${zone})?(?: \d{4}\b)?`,
  String.raw`${start}${clock}${zone}`,
  String.raw`${start}\d{1,6}m\d{1,2}(?:[.,]\d{1,9})?s\b`,
  String.raw`${start}\d{1,9}(?:[.,]\d{1,9})? ?${unit}\b`,
  String.raw`${start}1[5-9]\d{8}(?:\.\d{1,9})?\b`,
  // What a command used, as `time` of GNU says it, and how busy the machine is.
  String.raw`${start}[\d.:]{1,12}%?(?=user\b|system\b|elapsed\b|CPU\b|avgtext\b|avgdata\b|maxresident\b|inputs\b|outputs\b|major\b|minor\b)`,
  String.raw`${start}load averages?: [\d., ]{4,30}`,
  String.raw`${start}Inode: \d{1,20} *`,
  // Rules that are drawn to the end of a line around a duration.
  String.raw`[=_-]{5,}`,
].join('|');
const folder = '/(?:private/)?(?:tmp|var/tmp|dev/shm|run/user/[0-9]{1,9})/';
const path = String.raw`${folder}[\w+-]+(?:\.[\w+-]+){0,9}`;
const labelled = [
  String.raw`${start}(?:p?pid|PP?ID|[Pp]rocess|[Pp]ort)(?: ?[=:#] ?| )(?=\d)`,
  String.raw`${start}(?:[A-Z]\w{1,30} )?ID: (?=\w{4})`,
  String.raw`(?:127\.0\.0\.1|0\.0\.0\.0|localhost|\[::1?\]):(?=\d)`,
  String.raw`\[\d{1,3}\] (?=\d{2,10}(?:\D|$))`,
].join('|');
const id = [
  String.raw`${start}0x[0-9a-fA-F]{4,16}\b`,
  String.raw`${start}[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`,
  String.raw`${start}(?=[a-f]{0,63}\d)(?=\d{0,63}[a-f])[0-9a-f]{7,64}\b`,
  // Contents that git compares, some of which have no letter.
  String.raw`${start}[0-9a-f]{7,40}(?=\.\.[0-9a-f]{7})`,
  String.raw`(?<=[0-9a-f]{7}\.\.)[0-9a-f]{7,40}\b`,
  String.raw`${start}tmp[a-z0-9_]{8}\b`,
  String.raw`${start}tmp\.\w{10}\b`,
  String.raw`${start}\d{12,20}\b`,
].join('|');

const temporary = new RegExp(path, 'g');

/** All quantifiers are bounded or end at a character that cannot begin another match, so the search is linear. */
const differing = new RegExp(
  String.raw`(?<path>${path})|(?:${labelled})(?<labelled>\d{1,10}\b|(?<=ID: )\w{4,64})|(?<id>${id})|(?<passing>${passing})`,
  'gm',
);
