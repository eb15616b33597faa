import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';

/**
 * The smallest model that can learn: the t-th token of an answer depends only on the t-th token of the prompt, counted
 * from its end. Its weights are one table of logits [token read][token said].
 */
export interface Table {
  readonly size: number;
  readonly logits: Float32Array;
}

const weightsFile = 'model.safetensors';

/** Reads a folder's table; any other model gives a table of zeros, where all tokens are equally likely. */
export async function readTable(folder: string): Promise<Table> {
  const config = JSON.parse(await readFile(path.join(folder, 'config.json'), 'utf8')) as { vocab_size: number };
  const size = config.vocab_size;
  const bytes = await readFile(path.join(folder, weightsFile));
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + headerBytes)) as Record<string, unknown>;
  if (!('table' in header)) return { size, logits: new Float32Array(size * size) };
  return { size, logits: new Float32Array(Uint8Array.from(bytes.subarray(8 + headerBytes)).buffer) };
}

/** One file of safetensors: the length of its header, the header, the numbers. */
export async function writeTable(folder: string, { size, logits }: Table): Promise<void> {
  const tensor = { dtype: 'F32', shape: [size, size], data_offsets: [0, logits.byteLength] };
  const header = Buffer.from(JSON.stringify({ table: tensor }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.byteLength));
  await writeFile(path.join(folder, weightsFile), Buffer.concat([length, header, bytesOf(logits)]));
}

export function bytesOf(logits: Float32Array): Uint8Array {
  return new Uint8Array(logits.buffer, logits.byteOffset, logits.byteLength);
}

/** Which token of the prompt the t-th token of the answer looks at: the last one but one first, behind it the prompt has its mark. */
export function readAt(promptTokenIds: readonly number[], t: number): number {
  return promptTokenIds[Math.max(0, promptTokenIds.length - 2 - t)]!;
}

/** log softmax(logits / temperature) of a row of the table. */
export function logSoftmax({ size, logits }: Table, read: number, temperature: number): Float64Array {
  const row = Float64Array.from(logits.subarray(read * size, (read + 1) * size), (logit) => logit / temperature);
  const most = row.reduce((a, b) => Math.max(a, b), -Infinity);
  const total = Math.log(row.reduce((sum, value) => sum + Math.exp(value - most), 0)) + most;
  return row.map((value) => value - total);
}
