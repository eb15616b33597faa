import { execFileSync, spawnSync } from 'node:child_process';
import {
  chmodSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';

export type Random = () => number;

/** Damages to a file, by their description. */
export const damages: Readonly<Record<string, (file: string, random: Random) => void>> = {
  'is gone': (file) => rmSync(file),
  'is empty': (file) => truncateSync(file, 0),
  'is cut': (file, random) => changed(file, (bytes) => bytes.subarray(0, Math.floor(bytes.length * random()))),
  'has a byte flipped': (file, random) =>
    changed(file, (bytes) => {
      const at = Math.floor(bytes.length * random());
      if (bytes.length > 0) bytes[at] = bytes[at]! ^ (1 << Math.floor(8 * random()));
      return bytes;
    }),
  'is null': (file) => writeFileSync(file, 'null\n'),
  'is {}': (file) => writeFileSync(file, '{}\n'),
  'is a list': (file) => writeFileSync(file, '[null, 7, {}]\n'),
  'is a text': (file) => writeFileSync(file, '"\\u001b[2J\\u202e"\n'),
  'is lines of null': (file) => writeFileSync(file, 'null\nnull\n'),
  'is nested deeply': (file) => writeFileSync(file, '['.repeat(50_000) + ']'.repeat(50_000)),
  'is not UTF-8': (file) => writeFileSync(file, Buffer.from([0xff, 0xfe, 0x1b, 0x5b, 0x32, 0x4a])),
  'lacks a key': (file, random) => otherJson(file, random, (table, key) => delete table[key]),
  'has a key that is null': (file, random) => otherJson(file, random, (table, key) => (table[key] = null)),
  'has a key of another type': (file, random) =>
    otherJson(file, random, (table, key) => {
      const others = ['\u001b[31m\u202etext', -1, 1e308, [], {}, [{}], true];
      table[key] = others[Math.floor(random() * others.length)];
    }),
  'is a folder': (file) => replaced(file, () => mkdirSync(file)),
  'is a FIFO': (file) => replaced(file, () => execFileSync('mkfifo', [file])),
  'is a link to itself': (file) => replaced(file, () => symlinkSync(file, file)),
  'is a link to /dev/zero': (file) => replaced(file, () => symlinkSync('/dev/zero', file)),
  'is a link to elsewhere': (file) => replaced(file, () => symlinkSync('/etc/passwd', file)),
  'is 3 GB': (file) => truncateSync(file, 3e9),
};

/** Every kind of object that a folder holds, numbers and digests aside: the newest of each, and the oldest, where that is another. */
export function kindsIn(folder: string): { readonly kind: string; readonly keys: readonly string[] }[] {
  const byKind = new Map<string, string[]>();
  const keys = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(folder, path.join(entry.parentPath, entry.name)))
    .sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  for (const key of keys) {
    const kind = key.replaceAll(/\b[0-9a-f]{8,}\b/g, '#').replaceAll(/\d+/g, 'N');
    byKind.set(kind, [...(byKind.get(kind) ?? []), key]);
  }
  return [...byKind].map(([kind, all]) => ({ kind, keys: [...new Set([all.at(-1)!, all[0]!])] }));
}

function replaced(file: string, put: () => void): void {
  rmSync(file);
  put();
}

function changed(file: string, change: (bytes: Buffer) => Uint8Array): void {
  writeFileSync(file, change(readFileSync(file)));
}

/** Valid JSON whose shape is another: one key, however deep, of one of its lines. What is no JSON is left as it is. */
function otherJson(file: string, random: Random, change: (table: Record<string, unknown>, key: string) => void): void {
  const lines = readFileSync(file, 'utf8').split('\n');
  const at = Math.floor(random() * Math.max(1, lines.length - 1));
  try {
    const isWhole = !file.endsWith('.jsonl');
    const value: unknown = JSON.parse(isWhole ? lines.join('\n') : lines[at]!);
    const places = placesIn(value);
    if (places.length === 0) return;
    const { table, key } = places[Math.floor(random() ** 2 * places.length)]!; // rather those at the top
    change(table, key);
    writeFileSync(file, isWhole ? JSON.stringify(value) : lines.with(at, JSON.stringify(value)).join('\n'));
  } catch {
    // weights, a template
  }
}

function placesIn(value: unknown): { table: Record<string, unknown>; key: string }[] {
  const found: { table: Record<string, unknown>; key: string }[] = [];
  const level = [value];
  for (let next = level.shift(); next !== undefined && found.length < 500; next = level.shift()) {
    if (typeof next !== 'object' || next === null) continue;
    if (!Array.isArray(next))
      for (const key of Object.keys(next)) found.push({ table: next as Record<string, unknown>, key });
    level.push(
      ...Object.values(next)
        .slice(0, 50)
        .filter((item) => item !== null),
    );
  }
  return found;
}

/** Replacements for a file or a folder in a stranger's folder. `secret` is a file of ours outside of it. */
export const plants: Readonly<Record<string, (place: string, secret: string) => void>> = {
  'is a link to a file of ours': (place, secret) => planted(place, () => symlinkSync(secret, place)),
  'is a link to a folder of ours': (place, secret) => planted(place, () => symlinkSync(path.dirname(secret), place)),
  'is a FIFO': (place) => planted(place, () => execFileSync('mkfifo', [place])),
  'is a socket': (place) => planted(place, () => void spawnSync(process.execPath, ['-e', socketAt, place])),
  'is a device': (place) => planted(place, () => symlinkSync('/dev/zero', place)),
  'is a folder': (place) => planted(place, () => mkdirSync(place)),
  'is empty': (place) => planted(place, () => writeFileSync(place, '')),
  'is sparse': (place) => planted(place, () => (writeFileSync(place, ''), truncateSync(place, 3e9))),
  'cannot be read': (place) =>
    planted(place, () => {
      writeFileSync(place, '{}');
      chmodSync(place, 0);
    }),
};

/** Leaves the socket there when it ends. */
const socketAt =
  'const s = require("net").createServer().listen(process.argv[1], () => process.kill(process.pid, "SIGKILL"));';

function planted(place: string, put: () => void): void {
  rmSync(place, { recursive: true, force: true });
  mkdirSync(path.dirname(place), { recursive: true });
  put();
}

/** Names that no code of ours uses. */
export const oddNames: readonly string[] = [
  '\u001b[2J\u202eevil',
  '-rf',
  '__proto__',
  'a\nb',
  ' ',
  'x'.repeat(250),
  '99999999999999999999',
  'step_-1',
  'step_1e9',
  'NaN.json',
  'ÿ\u0301.json',
  '.hidden',
];
