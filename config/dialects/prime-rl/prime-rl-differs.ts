import { formatPath } from '../../toml/positions.ts';
import { type Table, tableOr, valueAt } from '../../toml/tables.ts';
import type { Own } from '../dialect.ts';
import { placesOf } from '../places.ts';
import { isAgent } from './prime-rl-sources.ts';
import { hasTable } from './prime-rl-words.ts';

/**
 * Warns of differences between a run here and prime-rl's, even for a correct or silent file: one line for each. `bench
 * fidelity` finds differences without a line.
 */
interface Differing {
  /** The table of the sampling, and its limit of an answer. */
  readonly sampling: string;
  readonly answers: string;
  /** Path of the evaluated environments. */
  readonly evaluated: string;
}

export function sayDifferences(written: Table, own: Own, differing: Differing): void {
  sayCheckpoints(written, own);
  sayAnswerLimit(written, own, differing);
  sayEvaluationSampling(written, own, differing);
  sayPlayers(written, own, ['orchestrator.train', 'orchestrator.eval']);
}

export function sayCheckpoints(written: Table, own: Own): void {
  const tables = ['ckpt', 'trainer.ckpt', 'orchestrator.ckpt'];
  if (tables.some((table) => hasTable(written, table))) {
    if (tables.some((table) => valueAt(written, [...table.split('.'), 'interval']) !== undefined)) return;
    own.warn(
      'ckpt.interval is not written: a checkpoint of the end alone, as since December 2025 (before, every 50 steps).',
    );
    return;
  }
  own.warn('no [ckpt] is written: prime-rl would leave no checkpoint; a run here leaves one every 20 steps.');
}

function sayAnswerLimit(written: Table, own: Own, { sampling, answers }: Differing): void {
  const limits = [`${sampling}.${answers}`, `${sampling.replace(/sampling$/, 'source[].sampling')}.${answers}`];
  if (limits.some((path) => placesOf(path, written).length > 0)) return;
  if (own.get(['sampling', 'context_tokens']) !== undefined) return;
  own.warn(
    `${sampling}.${answers} is not written: prime-rl’s server would go on to the end of the model’s context; a turn here has ${String(own.get(['sampling', 'max_tokens']))} tokens at most, as many as a row that is trained.`,
  );
}

/**
 * Defaults changed with prime-rl's versions, and a file does not state its version. Its older names only prove that it
 * is no newer than they are.
 */
export function sayOlderDefaults(written: Table, own: Own): void {
  sayMasksOfAugust(written, own);
  const list = own.writtenAt(['env', 0, 'id'])?.join('.') ?? '';
  if (!/^orchestrator\.(?:train\.)?env\b/.test(list)) return;
  const drawn = own.get(['env']);
  const isRated = placesOf('orchestrator.train.source[].ratio', written).length > 0;
  if (Array.isArray(drawn) && drawn.length > 1 && !isRated && own.get(['env', 0, 'weight']) === undefined) {
    own.warn(
      'ratio is not written: environments are drawn alike, as since July 2026; before, by the sizes of their datasets. Write the ratios to have others.',
    );
  }
  const filters = ['filters', 'post_batch_filters', 'pre_batch_filters'];
  if (filters.every((key) => valueAt(written, ['orchestrator', key]) === undefined)) {
    own.warn(
      'orchestrator.filters is not written: groups without any advantage are taken out of a full batch, as since May 2026; before, they were trained on.',
    );
  }
}

/** prime-rl #3236, reverted by #3244. Files of that day have sources, and a name that was dropped eight days later. */
function sayMasksOfAugust(written: Table, own: Own): void {
  const isOfThen = own.writtenAt(['max_concurrent'])?.at(-1) === 'max_inflight_episodes';
  const loss = tableOr(valueAt(written, ['trainer', 'loss']));
  if (!isOfThen || 'dppo_mask_low' in loss || 'dppo_mask_high' in loss) return;
  own.warn(
    'trainer.loss.dppo_mask_low and dppo_mask_high are not written: 0.2, as before 11 August 2026 and after it; on that day prime-rl had 0.1.',
  );
}

const leftToServer = ['temperature', 'top_p', 'top_k', 'min_p'];

/** vLLM fills missing request fields from the model's generation_config.json. */
function sayEvaluationSampling(written: Table, own: Own, { sampling, answers, evaluated }: Differing): void {
  if (!hasTable(written, 'orchestrator.eval')) return;
  const ofSources = placesOf(evaluated, written).map((at) => [...at, 'sampling']);
  const tables = [['orchestrator', 'eval', 'sampling'], ...ofSources];
  const missing = [...leftToServer, answers].filter((key) =>
    tables.every((at) => valueAt(written, [...at, key]) === undefined),
  );
  if (missing.length === 0) return;
  own.warn(
    `orchestrator.eval.sampling: ${missing.join(', ')} ${missing.length === 1 ? 'is' : 'are'} not written, which prime-rl leaves to its server, as the model’s generation_config.json has them; evaluations here are sampled as ${sampling} says.`,
  );
}

/** Defaults of verifiers' AgentConfig. */
export function sayPlayers(written: Table, own: Own, tables: readonly string[]): void {
  const sources = tables.flatMap((table) => placesOf(`${table}.source[]`, written));
  for (const [key, there, here] of [
    ['harness', 'with the harness of the taskset, or "bash"', 'with "null"'],
    ['runtime', 'in a sandbox of Prime Intellect’s', 'in a process of this machine'],
  ] as const) {
    const without = sources.filter((at) => {
      const { taskset: _, ...env } = tableOr(valueAt(written, [...at, 'env']));
      const agents = Object.values(env).filter(isAgent);
      const agent = agents.length > 0 && agents.every((one) => key in one) ? true : undefined;
      const older = valueAt(written, [...at, 'harness']);
      const isSaid = agent !== undefined || (key === 'harness' ? older : valueAt(older, ['runtime'])) !== undefined;
      return !isSaid && valueAt(written, [...at, 'id']) === undefined;
    });
    if (without.length === 0) continue;
    own.warn(
      `${formatPath(without[0]!)}.env.agent.${key} is not written: prime-rl would play it ${there}, a run here plays it ${here}${without.length > 1 ? ` (and ${without.length - 1} more)` : ''}.`,
    );
  }
}
