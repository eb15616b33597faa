import { createHash } from 'node:crypto';
import { type FileHandle, mkdir, open, rename, rm } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../../core/errors.ts';
import { present } from '../../core/present.ts';
import type { OptimizerSpec } from '../../config/run-spec.ts';
import { sha256OfFile } from '../../store/file-store.ts';
import { linkFile } from './link-files.ts';
import { MsgpackWriter } from './msgpack.ts';

/**
 * Keeps each batch as it was given to the trainer. prime-rl knows a batch only by the number in its path, so its bytes are on the disk and their
 * sha256 is known before the trainer sees it, and the same bytes are given again after a death. This is a copy: the run’s store has the rows,
 * and equal rows always give equal bytes.
 */
export class GivenBatches {
  readonly #folder: string;
  readonly #given = new Map<number, GivenBatch>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** Writes the files of a step. Idempotent; throws if the step was written with other bytes before. */
  async write(step: number, batch: readonly BatchFile[], settings: StepSettings): Promise<GivenBatch> {
    const folder = path.join(this.#folder, `step_${step}`);
    const pending = `${folder}.pending`;
    await rm(pending, { recursive: true, force: true });
    await mkdir(pending, { recursive: true });
    const files: GivenFile[] = [];
    for (const { name, write } of batch) files.push({ name, ...(await writeFile(path.join(pending, name), write)) });
    const bytes = Buffer.from(`${JSON.stringify(settings)}\n`);
    files.push({ name: settingsName, ...(await writeBytes(path.join(pending, settingsName), bytes)) });
    await syncFolder(pending);
    const before = this.#given.get(step);
    if (before) {
      await rm(pending, { recursive: true });
      if (JSON.stringify(before.files) === JSON.stringify(files)) return before;
      throw new RatchetError('Bug', `Step ${step} was given to prime-rl’s trainer with other bytes before: ${folder}.`);
    }
    await rename(pending, folder);
    const made = { step, folder, files };
    this.#given.set(step, made);
    return made;
  }

  /** The batches of the steps after + 1 to last, ascending. Throws if one is missing. */
  between(after: number, last: number): GivenBatch[] {
    return Array.from({ length: last - after }, (_, i) => {
      const found = this.#given.get(after + 1 + i);
      if (found) return found;
      throw new RatchetError('EngineDied', `The batch of step ${after + 1 + i} is not kept here any more.`);
    });
  }

  async forget(isForgotten: (step: number) => boolean): Promise<void> {
    for (const [step, { folder }] of this.#given) {
      if (!isForgotten(step)) continue;
      this.#given.delete(step);
      await rm(folder, { recursive: true, force: true });
    }
  }
}

/** A file of a batch: its name, and the function that writes its content. */
export interface BatchFile {
  readonly name: string;
  readonly write: (out: MsgpackWriter) => Promise<void>;
}

export interface GivenBatch {
  readonly step: number;
  readonly folder: string;
  readonly files: readonly GivenFile[];
}

interface GivenFile {
  readonly name: string;
  readonly bytes: number;
  readonly sha256: string;
}

/** Settings that python/ratchet_prime_rl/objective.py gives the optimizer before the step. */
export interface StepSettings {
  readonly learning_rate: number;
  readonly weight_decay: number;
  readonly betas?: readonly [number, number];
  readonly eps?: number;
  readonly momentum?: number;
  readonly nesterov?: boolean;
  /** Factor of each row’s loss; 1 when missing. */
  readonly loss_scale?: number;
}

export function settingsOf(optimizer: OptimizerSpec, learningRate: number): StepSettings {
  const { type = 'adamw', beta1, beta2, epsilon, momentum, nesterov, weightDecay } = optimizer;
  const common = { learning_rate: learningRate, weight_decay: weightDecay };
  if (type === 'adamw') return { ...common, betas: [beta1, beta2], eps: epsilon };
  return type === 'sgd' ? { ...common, ...present({ momentum, nesterov }) } : common;
}

export const settingsName = 'settings.json';

/** Links a batch to where the trainer looks for it; the file of the first rank comes last. Throws if a byte of it has changed. */
export async function placeBatch({ folder, files }: GivenBatch, target: string): Promise<void> {
  await mkdir(target, { recursive: true });
  for (const { name, sha256 } of [...files].reverse()) {
    if ((await sha256OfFile(path.join(folder, name))) !== sha256)
      throw new RatchetError(
        'EngineDied',
        `${path.join(folder, name)} is not what was written: expected the sha256 ${sha256}. The disk may be damaged.`,
      );
    const partial = path.join(target, `${name}.tmp`);
    await rm(partial, { force: true });
    await linkFile(path.join(folder, name), partial);
    await rename(partial, path.join(target, name));
  }
}

async function writeFile(file: string, write: (out: MsgpackWriter) => Promise<void>): Promise<Omit<GivenFile, 'name'>> {
  return written(file, async (handle, hash) => {
    let bytes = 0;
    const out = new MsgpackWriter(async (piece) => {
      hash.update(piece);
      bytes += piece.byteLength;
      await writeAll(handle, piece);
    });
    await write(out);
    return bytes;
  });
}

async function writeBytes(file: string, bytes: Uint8Array): Promise<Omit<GivenFile, 'name'>> {
  return written(file, async (handle, hash) => {
    hash.update(bytes);
    await writeAll(handle, bytes);
    return bytes.byteLength;
  });
}

async function written(
  file: string,
  fill: (handle: FileHandle, hash: ReturnType<typeof createHash>) => Promise<number>,
): Promise<Omit<GivenFile, 'name'>> {
  const partial = `${file}.partial`;
  const hash = createHash('sha256');
  const handle = await open(partial, 'w', 0o600);
  let bytes: number;
  try {
    bytes = await fill(handle, hash);
    await handle.sync();
  } finally {
    await handle.close();
  }
  await rename(partial, file);
  return { bytes, sha256: hash.digest('hex') };
}

async function writeAll(handle: FileHandle, bytes: Uint8Array): Promise<void> {
  for (let at = 0; at < bytes.byteLength;) at += (await handle.write(bytes, at)).bytesWritten;
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
