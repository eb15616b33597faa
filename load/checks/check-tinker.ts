import { RatchetError } from '../../core/errors.ts';
import type { Problem } from '../../config/toml/problems.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { isTinkerLoss } from '../../config/models/tinker-spec.ts';
import { linearLoss, policyBatch } from '../../backends/tinker/batch.ts';
import { lossBy } from '../../backends/tinker/server-facts.ts';
import { isTrouble, TinkerClient } from '../../backends/tinker/index.ts';

/** Answer of a run's Tinker server, before anything was started there. */
interface TinkerReport {
  readonly url: string;
  /** Why it could not be asked; null when it answered. */
  readonly away: string | null;
  readonly models: readonly string[];
  /** Settings of the run that it does not support. */
  readonly problems: readonly Problem[];
}

/** Short, since a user waits. */
const patienceMs = 2_000;

/** Asks a Tinker server for its models and whether it knows the run's loss. Creates no model there. */
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
    const assumed = lossBy(trainer.reduction ?? (trainer.server === 'tinker' ? 'sum' : 'sequence_mean'));
    const isComputedThere = isTinkerLoss(loss, kl.beta);
    const { lossFn } = isComputedThere ? policyBatch([], loss, assumed).loss : linearLoss(assumed.linearIn);
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
