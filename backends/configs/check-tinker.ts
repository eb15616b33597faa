import { RatchetError } from '../../core/errors.ts';
import type { Problem } from '../../config/problems.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { isTinkerLoss } from '../../config/tinker-spec.ts';
import { linearLoss, policyBatch } from '../tinker/batch.ts';
import { isTrouble, TinkerClient } from '../tinker/index.ts';

/** What a run's Tinker server said, before anything was started there. */
interface TinkerReport {
  readonly url: string;
  /** Why it could not be asked; null where it answered. */
  readonly away: string | null;
  readonly models: readonly string[];
  /** What of the run it cannot do. */
  readonly problems: readonly Problem[];
}

/** A person waits for it. */
const patienceMs = 2_000;

/** Asks a Tinker server for its models and whether it knows the run's loss. No model is made for it. */
export async function examineTinker({ trainer, loss, kl }: RunSpec, file: string): Promise<TinkerReport | null> {
  if (trainer.kind !== 'tinker') return null;
  const { url, baseModel } = trainer;
  const client = new TinkerClient(trainer, { patienceMs });
  try {
    const found = await client.capabilities();
    const models = found.map(({ name }) => name);
    const problems: Problem[] = [];
    const isNamed = baseModel === null ? models.length === 1 : models.includes(baseModel);
    if (!isNamed) {
      problems.push({
        file,
        line: null,
        column: null,
        path: 'trainer.base_model',
        expected: `one of the models of ${url}: ${models.join(', ') || 'it has none'}`,
        received: baseModel === null ? 'nothing' : JSON.stringify(baseModel),
      });
    }
    const { reduction } = trainer;
    const { lossFn } = isTinkerLoss(loss, kl.beta) ? policyBatch([], loss, reduction).loss : linearLoss(reduction);
    if ((await client.knowsLoss(lossFn)) === false) {
      problems.push({
        file,
        line: null,
        column: null,
        path: 'trainer.loss.type',
        expected: `a loss that ${url} knows`,
        received: `${JSON.stringify(loss.type)}, which is its "${lossFn}": it answers 422`,
      });
    }
    return { url, away: null, models, problems };
  } catch (error) {
    if (!isTrouble(error) && !(error instanceof RatchetError)) throw error;
    return { url, away: error.message, models: [], problems: [] };
  } finally {
    client.close();
  }
}

export function describeTinker({ url, away, models, problems }: TinkerReport): string[] {
  if (away !== null) return [`Tinker server ${url}: could not be asked: ${away}`];
  return [
    `Tinker server ${url}: has ${models.join(', ') || 'no model'}`,
    ...problems.map(({ path, expected, received }) => `  ${path}: expected ${expected}, got ${received}`),
  ];
}
