import { stat } from 'node:fs/promises';
import { readRegular, whyUnreadable } from '../../host/regular-file.ts';
import { tellsContent } from '../untold.ts';
import { linesOfParquet } from './parquet-lines.ts';

/** Rows of a file as lines of JSON, not parsed; of a `.parquet` file each row is a line. */
export interface RowLines {
  readonly lines: readonly string[];
  readonly sizeBytes: number;
}

/** Why a file's rows cannot be read, in words. */
export class UnreadableRows extends Error {}

/** Throws `UnreadableRows`, whose message has the file's name and none of its content unless that may be told. */
export async function readRowLines(file: string, bytesMax: number): Promise<RowLines> {
  let bytes: Uint8Array;
  try {
    const { size } = await stat(file);
    if (size > bytesMax) throw new UnreadableRows(`it has ${size} bytes, more than ${bytesMax}: ${file}`);
    bytes = await readRegular(file);
  } catch (cause) {
    if (cause instanceof UnreadableRows) throw cause;
    throw new UnreadableRows(`${whyUnreadable(cause)}: ${file}`, { cause });
  }
  const sizeBytes = bytes.byteLength;
  if (file.endsWith('.parquet')) {
    const lines = await linesOfParquet(bytes).catch((cause: unknown) => {
      if (!tellsContent()) throw new UnreadableRows(`it is no Parquet that can be read here: ${file}`);
      const why = (cause as Error).message;
      throw new UnreadableRows(`it is no Parquet that can be read here (${why}): ${file}`, { cause });
    });
    return { lines, sizeBytes };
  }
  try {
    return { lines: new TextDecoder('utf8', { fatal: true }).decode(bytes).split('\n'), sizeBytes };
  } catch (cause) {
    throw new UnreadableRows(`it is not UTF-8: ${file}`, { cause });
  }
}
