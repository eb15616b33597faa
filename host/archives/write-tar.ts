/** An entry of a tar, written in the given order. Folders need no entry of their own. */
export type TarEntry = {
  /** Relative, with `/` between its parts, without `.` and `..`. */
  readonly name: string;
  /** Permissions. */
  readonly mode: number;
  /** Seconds since 1970. */
  readonly modifiedS: number;
} & (
  | { readonly is: 'file'; readonly size: number; readonly content: AsyncIterable<Uint8Array> | Iterable<Uint8Array> }
  | { readonly is: 'folder' }
  /** A symbolic link. */
  | { readonly is: 'link'; readonly target: string }
  /** Another name of a file before it. */
  | { readonly is: 'same'; readonly target: string }
);

export const blockBytes = 512;
const typeOf = { file: '0', same: '1', link: '2', folder: '5' } as const;
/** Largest size that eleven octal digits hold. */
const octalSizeMax = 8 ** 11 - 1;

/** Writes a tar in pax's form: equal entries give equal bytes. */
export async function* writeTar(entries: AsyncIterable<TarEntry> | Iterable<TarEntry>): AsyncGenerator<Uint8Array> {
  for await (const entry of entries) {
    const size = entry.is === 'file' ? entry.size : 0;
    const target = entry.is === 'link' || entry.is === 'same' ? entry.target : '';
    const extra = [
      ...(Buffer.byteLength(entry.name) > 100 ? [paxRecord('path', entry.name)] : []),
      ...(Buffer.byteLength(target) > 100 ? [paxRecord('linkpath', target)] : []),
      ...(size > octalSizeMax ? [paxRecord('size', String(size))] : []),
    ].join('');
    if (extra !== '') {
      const bytes = Buffer.from(extra);
      yield header({ name: 'pax', type: 'x', size: bytes.length, mode: 0o644, modifiedS: 0, target: '' });
      yield bytes;
      yield padding(bytes.length);
    }
    const { name, mode, modifiedS } = entry;
    yield header({ name, type: typeOf[entry.is], size, mode, modifiedS, target });
    if (entry.is === 'file') {
      let written = 0;
      for await (const part of entry.content) {
        written += part.length;
        yield part;
      }
      if (written !== size) throw new Error(`${name}: expected ${size} bytes, got ${written}`);
      yield padding(size);
    }
  }
  yield Buffer.alloc(2 * blockBytes);
}

/** The tar of files that are in memory. */
export function tarOfFiles(
  files: readonly { readonly path: string; readonly bytes: Uint8Array; readonly mode?: number }[],
): AsyncGenerator<Uint8Array> {
  return writeTar(
    files.map(({ path, bytes, mode = 0o644 }) => {
      return { name: path, mode, modifiedS: 0, is: 'file', size: bytes.length, content: [bytes] } as const;
    }),
  );
}

interface Header {
  readonly name: string;
  readonly type: string;
  readonly size: number;
  readonly mode: number;
  readonly modifiedS: number;
  readonly target: string;
}

function header({ name, type, size, mode, modifiedS, target }: Header): Buffer {
  const bytes = Buffer.alloc(blockBytes);
  const octal = (value: number, at: number, length: number): void =>
    void bytes.write(`${value.toString(8).padStart(length - 1, '0')}\0`, at, 'latin1');
  beginningOf(name).copy(bytes, 0);
  octal(mode & 0o7777, 100, 8);
  octal(0, 108, 8);
  octal(0, 116, 8);
  octal(Math.min(size, octalSizeMax), 124, 12);
  octal(Math.max(0, Math.min(Math.floor(modifiedS), octalSizeMax)), 136, 12);
  bytes.write(type, 156, 'latin1');
  beginningOf(target).copy(bytes, 157);
  bytes.write('ustar\x0000', 257, 'latin1');
  bytes.fill(' ', 148, 156);
  const sum = bytes.reduce((total, byte) => total + byte, 0);
  bytes.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  return bytes;
}

/** The part of a text that fits into a header field. A pax record before the header has all of it. */
function beginningOf(text: string): Buffer {
  return Buffer.from(text).subarray(0, 100);
}

/** `LENGTH KEY=VALUE\n`; the length counts its own digits, too. */
function paxRecord(key: string, value: string): string {
  const rest = ` ${key}=${value}\n`;
  const bytes = Buffer.byteLength(rest);
  let length = bytes + String(bytes).length;
  if (String(length).length !== String(bytes).length) length = bytes + String(length).length;
  return `${length}${rest}`;
}

function padding(size: number): Uint8Array {
  return Buffer.alloc((blockBytes - (size % blockBytes)) % blockBytes);
}
