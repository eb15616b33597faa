/**
 * A trainer whose weights are a hash chain: the digest after a step is the hash of the one before, the optimizer's state,
 * and all that decides a step. It costs nothing, and a batch that is lost, trained twice or changed shows in every digest
 * after it. `[trainer] kind = "module"`; options: { stepMs } = how long a step takes, { log } = a file that notes each step.
 */
import { createHash } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { readdir, readFile, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Trainer } from '../../backends/trainer/types.ts';
// Not all of the engine: each worker that loads this file would read it from source.
import { loadModelFolder } from '../../engine/model/model-folder.ts';

/** One step that was trained, by its process; milliseconds since 1970. */
export interface TrainedLine {
  readonly step: number;
  readonly pid: number;
  readonly from: number;
  readonly until: number;
}

interface Args {
  readonly stepMs?: number;
  /** Missing = nothing is noted. */
  readonly log?: string;
}

const weightsFile = 'model.safetensors';
const digestLength = 64;
const freshOptimizer = 'fresh';

export default function createTrainer({ stepMs = 0, log }: Args): Trainer {
  /** Tokenizer and configs; their folder may be removed while it trains. */
  let texts: readonly (readonly [string, Buffer])[] = [];
  let digest = '';
  let optimizer = freshOptimizer;
  const advance = async (what: unknown): Promise<void> => {
    await delay(stepMs);
    digest = hash(digest, optimizer, JSON.stringify(what));
    optimizer = hash(optimizer, digest);
  };
  return {
    async open(from) {
      texts = await textsOf(from);
      const { size } = await stat(path.join(from, weightsFile));
      digest =
        size === digestLength
          ? await readFile(path.join(from, weightsFile), 'utf8')
          : (await loadModelFolder(from)).parameters.digest();
      return { digest };
    },
    async trainStep({ plan, batch }) {
      const { step, learningRate, klBeta, reference, loss } = plan;
      const from = Date.now();
      await advance({
        step,
        learningRate,
        klBeta,
        reference: reference.digest,
        loss,
        samples: await batch.read([...batch.rows.keys()]),
      });
      if (log !== undefined) {
        const line: TrainedLine = { step, pid: process.pid, from, until: Date.now() };
        appendFileSync(log, `${JSON.stringify(line)}\n`);
      }
      const metrics = { loss: 1, grad_norm: 1, entropy: 1, kl_divergence: 0 };
      return { applied: true, metrics, digest };
    },
    async sftStep({ samples, learningRate }) {
      await advance({ samples, learningRate });
      return { applied: true, metrics: { loss: 1 } };
    },
    digest: () => Promise.resolve(digest),
    async exportTo(target) {
      for (const [name, text] of texts) await writeFile(path.join(target, name), text);
      await writeFile(path.join(target, weightsFile), digest);
    },
    saveOptimizer: () => Promise.resolve(Buffer.from(optimizer)),
    restoreOptimizer(state) {
      optimizer = state === null ? freshOptimizer : Buffer.from(state).toString('utf8');
      return Promise.resolve();
    },
    close: () => Promise.resolve(),
  };
}

async function textsOf(folder: string): Promise<(readonly [string, Buffer])[]> {
  const names = (await readdir(folder)).filter((name) => name !== weightsFile);
  return Promise.all(names.map(async (name) => [name, await readFile(path.join(folder, name))] as const));
}

function hash(...parts: readonly string[]): string {
  return createHash('sha256').update(parts.join('\n')).digest('hex');
}
